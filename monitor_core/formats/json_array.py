r"""JSON: one array per file, one record per line, valid for ``json.load`` between any two flushes.

Bytes of a file::

    [\n
    {"seq":0,...},\n
    {"seq":1,...}\n]          <- an append replaces these last two bytes by  ,\n{...}\n]

A record exists only with its newline; where the file ends for good, a comma or bracket behind it will do. Because the
newline behind the last record moves when another is appended, a reader's offset stays *before* it, at the closing
brace. NaN and infinities are the strings "NaN", "Infinity" and
"-Infinity" (bare tokens are not JSON, but are read); the five article keys are in every record, null where not
measured. Arrays of other writers are read too, as long as no record spans two lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from monitor_core.batch import NO_EPOCH
from monitor_core.errors import FormatError
from monitor_core.formats.base import Decoded, Problem
from monitor_core.formats.common import Lines, check, cut_short, plain, refusing, report, split_lines, within_caps
from monitor_core.formats.json_columns import columns_of
from monitor_core.limits import MAX_ATTEMPT, MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, RESERVED_NAMES, FileHeader, Record

_UNMEASURED: dict[str, None] = {key: None for key in ARTICLE_KEYS if key not in RESERVED_NAMES}
#: Keys beside the metrics that a record of ours may have.
_OTHER_KEYS = len(RESERVED_NAMES) + len(_UNMEASURED)
#: What joins records on one line and belongs to none of them.
_BLANKS = b" \t\r"
_BETWEEN = _BLANKS + b","
#: Blank bytes behind a record that are left for the next call; our own files have one.
_WINDOW_BYTES = 16


@dataclass(frozen=True, slots=True)
class JsonState:
    """How far a JSON file is read."""

    offset: int = 0
    skipping: bool = False
    """Inside a line that is longer than the cap; what follows up to its newline is passed over."""
    next_seq: int = 0
    """``seq`` for records of other writers that carry none."""


class JsonEncoder:
    """Appends records to one array."""

    overlap = 2

    def begin(self) -> bytes:
        return b"[\n]"

    def accepts(self, records: Sequence[Record]) -> bool:
        return True

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        with refusing(records):
            lines = b",\n".join([_line(record) for record in records])
        return (b"\n" if first else b",\n") + lines + b"\n]"


def _line(record: Record) -> bytes:
    check(record)
    row: dict[str, Any] = {
        "seq": int(record.seq),
        "attempt": int(record.attempt),
        "step": int(record.step),
        "epoch": None if record.epoch is None else int(record.epoch),
        "timestamp": _cell(record.timestamp),
        **_UNMEASURED,
    }
    for name, value in record.scalars.items():
        row[name] = _cell(value)
    row["net_outputs"] = {
        "loss": row["loss"]
    }  # null where not measured: the article's loader takes a missing one for 0
    row.update(record.nested)
    try:
        line = orjson.dumps(row)
    except TypeError:
        line = orjson.dumps({plain(name): value for name, value in row.items()})
    if len(line) >= MAX_LINE_BYTES:
        raise FormatError(f"record seq {record.seq}: {len(line)} bytes as JSON; expected fewer than {MAX_LINE_BYTES}")
    return line


def _cell(value: float) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"


class JsonFormat:
    """``monitor_00001.json``."""

    name = "json"
    suffix = ".json"

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> JsonEncoder:
        return JsonEncoder()

    def start(self) -> JsonState:
        return JsonState()

    def decode(self, state: JsonState, data: bytes, *, final: bool = False) -> Decoded:
        problems: list[Problem] = []
        lines = split_lines(state.offset, state.skipping, data, problems)
        rows = _Rows(problems)
        for place, line in zip(lines.offsets, lines.whole, strict=True):
            rows.take(place, line)
        offset = lines.consumed if lines.skipping else state.offset + _settled(data, lines.consumed - state.offset)
        if final:
            _take_rest(lines, rows, problems)
            offset = state.offset + len(data)
        batch, next_seq = columns_of(rows.found, rows.shapes, state.next_seq)
        return Decoded(JsonState(offset, lines.skipping, next_seq), batch, tuple(problems))


def _settled(data: bytes, end: int) -> int:
    """How much of the whole lines ``data[:end]`` no append will change: not the newline behind the last record."""
    window = data[max(0, end - _WINDOW_BYTES) : end]
    text = window.rstrip()
    if text.endswith(b"}"):
        return end - len(window) + len(text)
    return 0 if not text and end <= _WINDOW_BYTES else end


def _take_rest(lines: Lines, rows: _Rows, problems: list[Problem]) -> None:
    """The end of a file that grows no more.

    A bracket or comma behind a whole record stands for its newline: other writers end so, and so does a file of ours
    whose next append was cut after its first byte.
    """
    rest = lines.rest.strip(_BLANKS)
    if rest.endswith((b"]", b",")) and rows.take(lines.consumed, rest, tell=False):
        return
    if rest not in (b"", b"["):
        problems.append(cut_short(lines.consumed, len(lines.rest), "record"))


class _Rows:
    """Collects the records of one ``decode`` call; columns are made at the end, in bulk."""

    def __init__(self, problems: list[Problem]) -> None:
        self.found: list[dict[str, Any]] = []
        self.shapes: dict[tuple[str, ...], list[int]] = {}
        """Keys that records have, to the numbers of the records that have just these."""
        self._problems = problems
        self._names: set[str] = set()

    def take(self, offset: int, line: bytes, *, tell: bool = True) -> bool:
        """Take the record, or records, of one line; False, with a problem unless ``tell`` is off, when it holds none."""
        text = line.strip(_BETWEEN)
        if text in (b"", b"[", b"]"):
            return True
        try:
            found = _loads(text)
            rows = found if isinstance(found, list) else [found]
            shapes = [self._check(row) for row in rows]
        except ValueError as error:
            if tell:
                reason = f"expected one JSON record on this line: {error}"
                report(self._problems, Problem("corrupt", offset, len(line) + 1, reason))
            return False
        for shape, row in zip(shapes, rows, strict=True):
            self.shapes.setdefault(shape, []).append(len(self.found))
            self.found.append(row)
        return True

    def _check(self, row: object) -> tuple[str, ...]:
        """The row's keys. Raises ValueError for what is no record."""
        if not isinstance(row, dict):
            raise ValueError(f"an object was expected, found {type(row).__name__}")
        if len(row) > MAX_METRICS + _OTHER_KEYS:
            raise ValueError(f"{len(row)} keys are more than the cap of {MAX_METRICS} metrics")
        get = row.get
        step, seq, attempt, epoch = get("step"), get("seq", 0), get("attempt", 1), get("epoch")
        if not (
            (step.__class__ is int and -MAX_STEP <= step <= MAX_STEP)
            and (seq.__class__ is int and 0 <= seq <= MAX_STEP)
            and (attempt.__class__ is int and 0 <= attempt <= MAX_ATTEMPT)
            and (epoch is None or (epoch.__class__ is int and NO_EPOCH <= epoch <= MAX_STEP))
        ):
            found = f"step {step!r:.40}, seq {seq!r:.40}, attempt {attempt!r:.40}, epoch {epoch!r:.40}"
            raise ValueError(f"whole numbers were expected, found {found}")
        shape = tuple(row)
        if shape not in self.shapes:
            self._names.update(row)
        within_caps(len(self.found), len(self._names))
        return shape


def _loads(text: bytes) -> Any:
    if text.startswith(b"]"):
        # Read in two goes while an append came between: the first saw the closing bracket, the second what replaced it.
        text = text[1:]
    elif text.startswith(b"[") and not text.endswith(b"]"):
        text = text[1:]
    elif text.endswith(b"]") and not text.startswith(b"["):
        text = text[:-1].rstrip(_BETWEEN)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    try:  # Python's own json module writes, and reads, these two as bare tokens
        return json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
