"""CSV: a header row, then wide rows; spreadsheets and ``pandas.read_csv`` open it without options.

An empty cell is an absent metric; ``NaN``, ``inf`` and ``-inf`` are measurements. Nested values are dropped, as CSV
has no place for them. A metric that comes up in mid-run needs a wider header and therefore the next file (``accepts``
is False): a file is never rewritten. A row exists only with its newline. UTF-8, with a byte order mark only if a name
is not ASCII (Excel needs it then).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from monitor_core.batch import NO_EPOCH, Batch, Column, Floats, concat
from monitor_core.formats.base import Decoded, Problem
from monitor_core.limits import MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, FileHeader, Record

HEAD = ("seq", "attempt", "step", "epoch", "timestamp")
BOM = b"\xef\xbb\xbf"
#: Cells that spreadsheets would run as formulas get this prefix; the reader takes it off.
_FORMULA = ("=", "+", "-", "@")
_GUARD = "'"
#: A row that begins so is a header, also when a resumed logger writes it again in mid-file.
_HEADER_STARTS = (b"seq,", b"step,", b'"step"')


@dataclass(frozen=True, slots=True)
class CsvState:
    """How far a CSV file is read."""

    offset: int = 0
    columns: tuple[str, ...] = ()
    """Names of the header row in force; empty before the first."""
    skipping: bool = False
    """Inside a line that is longer than the cap."""
    next_seq: int = 0
    """``seq`` for rows of other writers that carry none."""


class CsvEncoder:
    """Appends rows under one header."""

    overlap = 0

    def __init__(self, first: Sequence[Record]) -> None:
        names: dict[str, None] = dict.fromkeys(key for key in ARTICLE_KEYS if key not in HEAD)
        for record in first:
            names.update(dict.fromkeys(record.scalars))
        self._names = tuple(names)
        self._known = frozenset(names)

    def begin(self) -> bytes:
        row = _row([*HEAD, *(_guarded(name) for name in self._names)])
        text = row.encode("utf-8", "backslashreplace")
        return text if text.isascii() else BOM + text

    def accepts(self, records: Sequence[Record]) -> bool:
        return all(record.scalars.keys() <= self._known for record in records)

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        return "".join([self._line(record) for record in records]).encode("ascii")

    def _line(self, record: Record) -> str:
        scalars = record.scalars
        cells = [
            str(record.seq),
            str(record.attempt),
            str(record.step),
            "" if record.epoch is None else str(record.epoch),
            repr(float(record.timestamp)),
        ]
        for name in self._names:
            value = scalars.get(name)
            cells.append("" if value is None else "NaN" if value != value else repr(float(value)))
        return ",".join(cells) + "\n"


def _guarded(name: str) -> str:
    return _GUARD + name if name.startswith((*_FORMULA, _GUARD)) else name


def _unguarded(name: str) -> str:
    return name.removeprefix(_GUARD)


def _row(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([cell.replace("\r", "\\r").replace("\n", "\\n") for cell in cells])
    return out.getvalue()


class CsvFormat:
    """``monitor_00001.csv``."""

    name = "csv"
    suffix = ".csv"

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> CsvEncoder:
        return CsvEncoder(first)

    def start(self) -> CsvState:
        return CsvState()

    def decode(self, state: CsvState, data: bytes, *, final: bool = False) -> Decoded:
        end = data.rfind(b"\n") + 1
        problems: list[Problem] = []
        rows = _Rows(state.columns, state.next_seq)
        position, skipping = 0, state.skipping
        for line in data[:end].split(b"\n")[:-1]:
            if skipping:
                skipping = False
            else:
                rows.take(line, state.offset + position, problems)
            position += len(line) + 1
        rest = len(data) - end
        if skipping:
            end = len(data)
        elif rest > MAX_LINE_BYTES:
            problems.append(_too_long(state.offset + end, rest))
            skipping, end = True, len(data)
        elif final and data[end:].strip():
            reason = "the file ends inside a row: its writer was stopped in mid-write"
            problems.append(Problem("truncated", state.offset + end, rest, reason))
            end = len(data)
        batch = rows.batch()
        return Decoded(CsvState(state.offset + end, rows.columns, skipping, rows.next_seq), batch, tuple(problems))


def _too_long(offset: int, length: int) -> Problem:
    return Problem("too_large", offset, length, f"a line longer than {MAX_LINE_BYTES} bytes was passed over")


class _Rows:
    """Collects the cells of one ``decode`` call; columns are made at the end, in bulk."""

    def __init__(self, columns: tuple[str, ...], next_seq: int) -> None:
        self.columns = columns
        self.next_seq = next_seq
        self._parts: list[_Part] = []
        self._place = {name: number for number, name in enumerate(columns)}

    def take(self, line: bytes, offset: int, problems: list[Problem]) -> None:
        body = line.rstrip(b"\r\n")
        if not body:
            return
        try:
            if len(body) > MAX_LINE_BYTES:
                problems.append(_too_long(offset, len(line)))
            elif not self.columns or body.removeprefix(BOM).startswith(_HEADER_STARTS):
                self._header(body)
            else:
                self._cells(body)
        except (ValueError, OverflowError) as error:
            problems.append(Problem("corrupt", offset, len(line), f"expected a row of numbers: {error}"))

    def _header(self, body: bytes) -> None:
        text = body.removeprefix(BOM).decode("utf-8")
        names = tuple(_unguarded(cell) for cell in next(csv.reader([text])))
        if "step" not in names:
            raise ValueError(f"the header has no column 'step': {text[:80]!r}")
        if len(names) > MAX_METRICS:
            raise ValueError(f"{len(names)} columns are more than the cap of {MAX_METRICS}")
        self.columns = names
        self._place = {name: number for number, name in enumerate(names)}

    def _cells(self, body: bytes) -> None:
        cells = body.decode("ascii").split(",")
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells under {len(self.columns)} columns")
        if b"_" in body:
            raise ValueError("a number with an underscore")
        values = [float(cell) if cell else math.nan for cell in cells]
        head = (
            self._whole(cells, "seq", self.next_seq),
            self._whole(cells, "attempt", 1),
            self._whole(cells, "step", None),
            self._whole(cells, "epoch", NO_EPOCH),
        )
        if not self._parts or self._parts[-1].names is not self.columns:
            self._parts.append(_Part(self.columns, [], [], []))
        part = self._parts[-1]
        part.heads.append(head)
        part.values.append(values)
        part.present.append([bool(cell) for cell in cells])
        self.next_seq = head[0] + 1

    def _whole(self, cells: list[str], name: str, default: int | None) -> int:
        place = self._place.get(name)
        cell = "" if place is None else cells[place]
        if not cell and default is not None:
            return default
        number = int(cell)
        if not -MAX_STEP <= number <= MAX_STEP:
            raise ValueError(f"{name}: {cell!r} does not fit 63 bits")
        return number

    def batch(self) -> Batch:
        return concat([_batch(part) for part in self._parts])


class _Part(NamedTuple):
    """Rows under one header."""

    names: tuple[str, ...]
    heads: list[tuple[int, int, int, int]]
    values: list[list[float]]
    present: list[list[bool]]


def _batch(part: _Part) -> Batch:
    heads = np.array(part.heads, np.int64)
    values = np.array(part.values, np.float64)
    present = np.array(part.present, bool)
    columns = {}
    times: Floats = np.full(len(heads), np.nan)
    for number, name in enumerate(part.names):
        mask = present[:, number]
        if name == "timestamp":
            times = values[:, number].copy()
        elif name not in HEAD and mask.any():
            columns[name] = Column(values[:, number].copy(), None if mask.all() else mask.copy())
    seq, attempt, step, epoch = (column.copy() for column in heads.T)
    return Batch(seq, attempt, step, epoch, times, columns)
