r"""CSV: a header row, then wide rows; spreadsheets and ``pandas.read_csv`` open it without options.

An empty cell is an absent metric; ``NaN``, ``inf`` and ``-inf`` are measurements. Nested values are dropped, as CSV
has no place for them. A metric that comes up in mid-run needs a wider header and therefore the next file (``accepts``
is False): a file is never rewritten. A row exists only with its newline. UTF-8, with a byte order mark only if a name
is not ASCII (Excel needs it then). In names, backslash, newline and NUL are written ``\\ \n \r \0``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor_core.batch import NO_EPOCH, Batch, Column, Floats
from monitor_core.errors import FormatError
from monitor_core.formats.base import Decoded, Problem
from monitor_core.formats.common import Parts, check, cut_short, plain, refusing, report, split_lines
from monitor_core.limits import MAX_ATTEMPT, MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, FileHeader, Record

HEAD = ("seq", "attempt", "step", "epoch", "timestamp")
BOM = b"\xef\xbb\xbf"
_ARTICLE_METRICS = tuple(key for key in ARTICLE_KEYS if key not in HEAD)
_MAX_COLUMNS = len(HEAD) + len(_ARTICLE_METRICS) + MAX_METRICS
#: Header cells that spreadsheets would run as formulas get this prefix; the reader takes it off.
_FORMULA = ("=", "+", "-", "@", "\t")
_GUARD = "'"
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_ESCAPED = {written: name for name, written in _ESCAPES.items()}
_CELL = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^,"]*)),')
_ESCAPE = re.compile(r"\\[\\nr0]")


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
    """Appends rows under one header, which has the columns of the first records as far as they fit one."""

    overlap = 0

    def __init__(self, first: Sequence[Record]) -> None:
        names: dict[str, None] = dict.fromkeys(_ARTICLE_METRICS)
        self._header = _header(names)
        for record in first:
            if not record.scalars.keys() <= names.keys():
                check(record)
                wider = names | dict.fromkeys(record.scalars)
                header = _header(wider)
                if len(header) > MAX_LINE_BYTES or len(wider) > MAX_METRICS:
                    break
                names, self._header = wider, header
        self._names = tuple(names)
        self._known = frozenset(names)

    def begin(self) -> bytes:
        return self._header

    def accepts(self, records: Sequence[Record]) -> bool:
        return all(record.scalars.keys() <= self._known for record in records)

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        with refusing(records):
            return "".join([self._line(record) for record in records]).encode("ascii")

    def _line(self, record: Record) -> str:
        check(record)
        seq, attempt, step, epoch, timestamp, scalars, _ = record
        if not scalars.keys() <= self._known:
            wider = sorted(scalars.keys() - self._known)[:9]
            raise FormatError(f"record seq {seq}: no columns for {wider}; ask accepts() first and begin a new file")
        head = f"{int(seq)},{int(attempt)},{int(step)},{'' if epoch is None else int(epoch)},{_cell(timestamp)}"
        cells = [
            repr(value) if value.__class__ is float and value == value else _cell(value) if name in scalars else ""
            for name, value in zip(self._names, map(scalars.get, self._names), strict=True)
        ]
        return ",".join([head, *cells]) + "\n"


def _cell(value: float | None) -> str:
    number = float(value)  # type: ignore[arg-type]  # None is no number: the record is refused
    return "NaN" if number != number else repr(number)


def _header(names: dict[str, None]) -> bytes:
    cells = [*HEAD, *map(_written, names)]
    if len(set(cells)) < len(cells):
        raise FormatError(f"two of the metrics {list(names)[:9]!r} are the same once written; choose other names")
    text = (",".join(map(_quoted, cells)) + "\n").encode("utf-8")
    return text if text.isascii() else BOM + text


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if "," in cell or '"' in cell or not cell else cell


def _written(name: str) -> str:
    if not name.isprintable() or "\\" in name:
        name = "".join([_ESCAPES.get(character, character) for character in plain(name)])
    return _GUARD + name if name.startswith((*_FORMULA, _GUARD)) else name


def _names(header: str) -> tuple[str, ...]:
    """Names in a header line. Not by the csv module, whose limit on a cell is a setting of the whole process."""
    names, place, text = [], 0, header + ","
    while place < len(text):
        cell = _CELL.match(text, place)
        if cell is None:
            raise ValueError(f"quotes that do not match, at character {place} of {header[:80]!r}")
        quoted, bare = cell.groups()
        names.append(_read(bare if quoted is None else quoted.replace('""', '"')))
        place = cell.end()
    return tuple(names)


def _read(cell: str) -> str:
    name = cell.removeprefix(_GUARD)
    return _ESCAPE.sub(lambda match: _ESCAPED[match[0]], name) if "\\" in name else name


class CsvFormat:
    """``monitor_00001.csv``."""

    name = "csv"
    suffix = ".csv"

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> CsvEncoder:
        with refusing(first):
            return CsvEncoder(first)

    def start(self) -> CsvState:
        return CsvState()

    def decode(self, state: CsvState, data: bytes, *, final: bool = False) -> Decoded:
        problems: list[Problem] = []
        lines = split_lines(state.offset, state.skipping, data, problems)
        rows = _Rows(state, problems)
        rows.take([(place, line) for place, line in zip(lines.offsets, lines.whole, strict=True) if line.strip(b"\r")])
        offset = lines.consumed
        if final:
            offset = state.offset + len(data)
            if lines.rest.strip():
                problems.append(cut_short(lines.consumed, len(lines.rest), "row"))
        after = CsvState(offset, rows.columns, lines.skipping, rows.next_seq)
        return Decoded(after, rows.parts.join(), tuple(problems))


class _Rows:
    """Turns the lines of one ``decode`` call into columns, as many rows at once as are good."""

    def __init__(self, state: CsvState, problems: list[Problem]) -> None:
        self.columns = state.columns
        self.next_seq = state.next_seq
        self.parts = Parts()
        self._problems = problems

    def take(self, lines: list[tuple[int, bytes]]) -> None:
        """Take all good rows in order."""
        start = 0
        while not self.columns and start < len(lines):
            self._header(*lines[start], "the first row must be one")
            start += 1
        self._take(lines[start:])

    def _take(self, lines: list[tuple[int, bytes]]) -> None:
        """As many rows at once as are good; a bad row, or a header, in their middle is found by halving."""
        if not lines:
            return
        try:
            self._rows([line for _, line in lines])
        except (ValueError, OverflowError) as error:
            if len(lines) == 1:
                self._header(*lines[0], str(error))
                return
            middle = len(lines) // 2
            self._take(lines[:middle])
            self._take(lines[middle:])

    def _header(self, offset: int, line: bytes, reason: str) -> None:
        """The line is a header, the first one or one that a resumed logger wrote again, or else bad."""
        try:
            names = _names(line.removeprefix(BOM).decode("utf-8").rstrip("\r"))
            if len(names) > _MAX_COLUMNS:
                raise ValueError(f"{len(names)} columns; expected at most {_MAX_COLUMNS}")
            if "step" in names:
                self.columns = names
                return
            if not self.columns:
                reason = f"no column 'step' in {line[:80]!r}"
        except ValueError as error:
            reason = str(error)
        expected = "a row of numbers" if self.columns else "a header row"
        report(self._problems, Problem("corrupt", offset, len(line) + 1, f"expected {expected}: {reason}"))

    def _rows(self, lines: list[bytes]) -> None:
        width = len(self.columns)
        for line in lines:
            if line.count(b",") != width - 1:
                raise ValueError(f"{line.count(b',') + 1} cells under {width} columns")
        text = b",".join(lines).decode("ascii")
        if "\r" in text:
            text = text.replace("\r,", ",").removesuffix("\r")
        if "_" in text:
            raise ValueError("an underscore, which is no part of a number")
        cells = text.split(",")
        head: dict[str, list[int] | None] = dict.fromkeys(HEAD)
        times = np.full(len(lines), np.nan)
        columns: dict[str, Column] = {}
        for place, name in enumerate(self.columns):
            found = cells[place::width]
            if name == "timestamp":
                times = np.array([float(cell or "nan") for cell in found], np.float64)
            elif name in head:
                head[name] = _wholes(name, found)
            elif any(found):
                columns[name] = _column(found)
        self._add(head, times, columns)

    def _add(self, head: dict[str, list[int] | None], times: Floats, columns: dict[str, Column]) -> None:
        rows = len(times)
        seq = np.array(head["seq"] or range(self.next_seq, self.next_seq + rows), np.int64)
        attempt = np.array(head["attempt"] or [1] * rows, np.int64)
        epoch = np.array(head["epoch"] or [NO_EPOCH] * rows, np.int64)
        self.parts.add(Batch(seq, attempt, np.array(head["step"], np.int64), epoch, times, columns))
        self.next_seq = int(seq[-1]) + 1


#: Whole-number columns: what an empty cell means (None: it may not be empty) and the range.
_WHOLE: dict[str, tuple[int | None, int, int]] = {
    "seq": (None, 0, MAX_STEP),
    "attempt": (1, 0, MAX_ATTEMPT),
    "step": (None, -MAX_STEP, MAX_STEP),
    "epoch": (NO_EPOCH, NO_EPOCH, MAX_STEP),
}


def _wholes(name: str, cells: list[str]) -> list[int]:
    default, lowest, highest = _WHOLE[name]
    if default is not None and not any(cells):
        return [default] * len(cells)
    try:
        numbers = list(map(int, cells))
    except ValueError:
        numbers = [_whole(name, cell, default) for cell in cells]
    if min(numbers) < lowest or max(numbers) > highest:
        raise ValueError(f"{name}: expected whole numbers from {lowest} to {highest}")
    return numbers


def _whole(name: str, cell: str, default: int | None) -> int:
    """One cell; spreadsheets and pandas write whole numbers as 3.0 where a column has empty cells."""
    if not cell.strip():
        if default is None:
            raise ValueError(f"{name}: expected a whole number, found an empty cell")
        return default
    try:
        return int(cell)
    except ValueError:
        number = float(cell)
        if not number.is_integer() or abs(number) > 2**53:
            raise ValueError(f"{name}: expected a whole number, found {cell!r}") from None
        return int(number)


def _column(cells: list[str]) -> Column:
    """At least one cell is not empty."""
    try:
        return Column(np.array(list(map(float, cells)), np.float64))
    except ValueError:
        cells = [cell.strip() for cell in cells]
    present = np.array(list(map(bool, cells)), bool)
    return Column(np.array([float(cell) if cell else math.nan for cell in cells], np.float64), present)
