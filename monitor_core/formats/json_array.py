r"""JSON: one array per file, one record per line, valid for ``json.load`` between any two flushes.

Bytes of a file::

    [\n
    {"seq":0,...},\n
    {"seq":1,...}\n]          <- an append replaces these last two bytes by  ,\n{...}\n]

A record exists only with its newline. Because the newline behind the last record moves when another is appended, a
reader's offset stays *before* it, at the closing brace. NaN and infinities are the strings "NaN", "Infinity" and
"-Infinity" (bare tokens are not JSON); the five article keys are in every record, null where not measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from monitor_core.batch import from_records
from monitor_core.errors import FormatError
from monitor_core.formats.base import Decoded, Problem
from monitor_core.limits import MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, NO_NESTED, RESERVED_NAMES, FileHeader, Record

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BARE_TOKEN = re.compile(rb'(?<![\w"])(NaN|-?Infinity)(?![\w"])')
_SKIPPED_LINES = (b"", b"[", b"]", b",")


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
        lines = b",\n".join([_line(record) for record in records])
        return (b"\n" if first else b",\n") + lines + b"\n]"


def _line(record: Record) -> bytes:
    row: dict[str, Any] = {
        "seq": record.seq,
        "attempt": record.attempt,
        "step": record.step,
        "epoch": record.epoch,
        "timestamp": record.timestamp,
    }
    scalars = record.scalars
    for key in ARTICLE_KEYS:
        if key not in row:
            row[key] = None
    for name, value in scalars.items():
        if name in RESERVED_NAMES:
            raise FormatError(f"metric {name!r}: the name is reserved by the record itself; choose another name")
        row[name] = value if math.isfinite(value) else _token(value)
    if "loss" in scalars:
        row["net_outputs"] = {"loss": row["loss"]}
    for name, nested in record.nested.items():
        row.setdefault(name, nested)
    try:
        return orjson.dumps(row)
    except (TypeError, UnicodeEncodeError) as error:
        raise FormatError(f"record seq {record.seq}, step {record.step}: cannot be written as JSON: {error}") from error


def _token(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class JsonFormat:
    """``monitor_00001.json``."""

    name = "json"
    suffix = ".json"

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> JsonEncoder:
        return JsonEncoder()

    def start(self) -> JsonState:
        return JsonState()

    def decode(self, state: JsonState, data: bytes, *, final: bool = False) -> Decoded:
        records: list[Record] = []
        problems: list[Problem] = []
        end = data.rfind(b"\n") + 1
        position, skipping, next_seq = 0, state.skipping, state.next_seq
        keep = 0
        while position < end:
            newline = data.index(b"\n", position)
            line = data[position:newline]
            if skipping:
                skipping = False
            else:
                found = self._take(line, state.offset + position, next_seq, problems)
                if found is not None:
                    records.append(found)
                    next_seq = found.seq + 1
            keep = newline if line.rstrip().endswith(b"}") else newline + 1
            position = newline + 1
        rest = len(data) - position
        if not skipping and rest > MAX_LINE_BYTES:
            problems.append(_too_long(state.offset + position, rest))
            skipping, keep = True, len(data)
        elif skipping:
            keep = len(data)
        elif final and data[position:].strip() not in _SKIPPED_LINES:
            problems.append(_cut(state.offset + position, data[position:]))
            keep = len(data)
        return Decoded(JsonState(state.offset + keep, skipping, next_seq), from_records(records), tuple(problems))

    def _take(self, line: bytes, offset: int, next_seq: int, problems: list[Problem]) -> Record | None:
        text = line.strip().removesuffix(b",").strip()
        if text in _SKIPPED_LINES:
            return None
        if len(text) > MAX_LINE_BYTES:
            problems.append(_too_long(offset, len(line)))
            return None
        try:
            return _record(_loads(text), next_seq)
        except (ValueError, TypeError, OverflowError) as error:
            reason = f"expected one JSON record on this line: {error}"
            problems.append(Problem("corrupt", offset, len(line), reason))
            return None


def _too_long(offset: int, length: int) -> Problem:
    return Problem("too_large", offset, length, f"a line longer than {MAX_LINE_BYTES} bytes was passed over")


def _cut(offset: int, rest: bytes) -> Problem:
    return Problem("truncated", offset, len(rest), "the file ends inside a record: its writer was stopped in mid-write")


def _loads(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python's own json module writes bare NaN and Infinity; quoting them makes the line valid.
        quoted = _BARE_TOKEN.sub(rb'"\1"', text)
        if quoted == text:
            raise
        return orjson.loads(quoted)


def _record(row: object, next_seq: int) -> Record:
    if not isinstance(row, dict):
        raise ValueError(f"an object was expected, found {type(row).__name__}")
    if len(row) > MAX_METRICS:
        raise ValueError(f"{len(row)} keys are more than the cap of {MAX_METRICS}")
    step = _whole(row, "step")
    seq = _whole(row, "seq", next_seq)
    attempt = _whole(row, "attempt", 1)
    epoch = None if row.get("epoch") is None else _whole(row, "epoch")
    timestamp = _value(row.get("timestamp"))
    scalars: dict[str, float] = {}
    nested: dict[str, object] = {}
    for name, found in row.items():
        if name in RESERVED_NAMES:
            continue
        number = _value(found)
        if number is not None:
            scalars[name] = number
        elif isinstance(found, (dict, list)):
            nested[name] = found
    outputs = row.get("net_outputs")
    if "loss" not in scalars and isinstance(outputs, dict):
        loss = _value(outputs.get("loss"))
        if loss is not None:
            scalars["loss"] = loss
    return Record(seq, attempt, step, epoch, math.nan if timestamp is None else timestamp, scalars, nested or NO_NESTED)


def _value(found: object) -> float | None:
    if isinstance(found, bool):
        return float(found)
    if isinstance(found, (int, float)):
        return float(found)
    return NON_FINITE.get(found) if isinstance(found, str) else None


def _whole(row: Mapping[str, object], key: str, default: int | None = None) -> int:
    found = row.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int) or not -MAX_STEP <= found <= MAX_STEP:
        raise ValueError(f"{key}: expected a whole number of at most 63 bits, found {found!r}")
    return found
