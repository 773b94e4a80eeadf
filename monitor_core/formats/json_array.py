r"""JSON: one array per file, one record per line, valid for ``json.load`` between any two flushes.

Bytes of a file::

    [\n
    {"seq":0,...},\n
    {"seq":1,...}\n]          <- an append replaces these last two bytes by  ,\n{...}\n]

A record exists only with its newline. Because the newline behind the last record moves when another is appended, a
reader's offset stays *before* it, at the closing brace. NaN and infinities are the strings "NaN", "Infinity" and
"-Infinity" (bare tokens are not JSON, but are read); the five article keys are in every record, null where not
measured. Arrays of other writers are read too, as long as no record spans two lines.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from monitor_core.batch import NO_EPOCH, Batch, Column
from monitor_core.errors import FormatError
from monitor_core.formats.base import Decoded, Problem
from monitor_core.formats.common import Lines, check, cut_short, plain, refusing, report, split_lines, within_caps
from monitor_core.limits import MAX_ATTEMPT, MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, RESERVED_NAMES, FileHeader, Record

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_UNMEASURED: dict[str, None] = {key: None for key in ARTICLE_KEYS if key not in RESERVED_NAMES}
#: Keys beside the metrics that a record of ours may have.
_OTHER_KEYS = len(RESERVED_NAMES) + len(_UNMEASURED)
#: What joins records on one line and belongs to none of them.
_BETWEEN = b" \t\r,"
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
    if "loss" in record.scalars:
        row["net_outputs"] = {"loss": row["loss"]}
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
        batch, next_seq = _batch(rows, state.next_seq)
        return Decoded(JsonState(offset, lines.skipping, next_seq), batch, tuple(problems))


def _settled(data: bytes, end: int) -> int:
    """How much of the whole lines ``data[:end]`` no append will change: not the newline behind the last record."""
    window = data[max(0, end - _WINDOW_BYTES) : end]
    text = window.rstrip()
    if text.endswith(b"}"):
        return end - len(window) + len(text)
    return 0 if not text and end <= _WINDOW_BYTES else end


def _take_rest(lines: Lines, rows: _Rows, problems: list[Problem]) -> None:
    """The end of a file that grows no more: a closing bracket, also right behind a record of another writer."""
    rest = lines.rest.strip(_BETWEEN)
    if rest.endswith(b"]") and (rest == b"]" or rows.take(lines.consumed, rest, tell=False)):
        return
    if rest not in (b"", b"["):
        problems.append(cut_short(lines.consumed, len(lines.rest), "record"))


class _Rows:
    """Collects the records of one ``decode`` call; columns are made at the end, in bulk."""

    def __init__(self, problems: list[Problem]) -> None:
        self.found: list[dict[str, Any]] = []
        self._problems = problems
        self.names: dict[str, None] = {}
        self._shapes: set[tuple[str, ...]] = set()

    def take(self, offset: int, line: bytes, *, tell: bool = True) -> bool:
        """Take the record, or records, of one line; False, with a problem unless ``tell`` is off, when it holds none."""
        text = line.strip(_BETWEEN)
        if text in (b"", b"[", b"]"):
            return True
        try:
            found = _loads(text)
            rows = found if isinstance(found, list) else [found]
            for row in rows:
                self._check(row)
        except ValueError as error:
            if tell:
                reason = f"expected one JSON record on this line: {error}"
                report(self._problems, Problem("corrupt", offset, len(line) + 1, reason))
            return False
        self.found.extend(rows)
        return True

    def _check(self, row: object) -> None:
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
        if shape not in self._shapes:
            self._shapes.add(shape)
            self.names.update(dict.fromkeys(row))
        within_caps(len(self.found), len(self.names))


def _loads(text: bytes) -> Any:
    if text.startswith(b"[") and not text.endswith(b"]"):
        text = text[1:]
    elif text.endswith(b"]") and not text.startswith(b"["):
        text = text[:-1]
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if b"NaN" not in text and b"Infinity" not in text:
            raise
    try:  # Python's own json module writes, and reads, these two as bare tokens
        return json.loads(text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _batch(found: _Rows, next_seq: int) -> tuple[Batch, int]:
    """Columns of the rows, and the ``seq`` that follows on them."""
    rows = found.found
    seq = _seq(rows, next_seq)
    columns: dict[str, Column] = {}
    nested: dict[int, dict[str, object]] = {}
    for name in found.names:
        if name not in RESERVED_NAMES:
            column = _column(name, [row.get(name) for row in rows], nested)
            if column is not None:
                columns[name] = column
    if "net_outputs" in found.names:
        loss = _outputs_loss(rows, columns.get("loss"))
        if loss is not None:
            columns["loss"] = loss
    times = _column("timestamp", [row.get("timestamp") for row in rows], {})
    batch = Batch(
        np.array(seq, np.int64),
        np.array([row.get("attempt", 1) for row in rows], np.int64),
        np.array([row["step"] for row in rows], np.int64),
        np.array([NO_EPOCH if (value := row.get("epoch")) is None else value for row in rows], np.int64),
        np.full(len(rows), np.nan) if times is None else times.values,
        columns,
        {row: nested[row] for row in sorted(nested)},
    )
    return batch, seq[-1] + 1 if seq else next_seq


def _seq(rows: list[dict[str, Any]], next_seq: int) -> list[int]:
    seq: list[int] = []
    for row in rows:
        found = row.get("seq")
        seq.append(next_seq if found is None else found)
        next_seq = seq[-1] + 1
    return seq


def _column(name: str, found: list[Any], nested: dict[int, dict[str, object]]) -> Column | None:
    """Numbers of one key over the rows; what is nested goes to ``nested``; None when no row has a number."""
    kinds = set(map(type, found))
    if kinds == {float}:
        return Column(np.array(found, np.float64))
    if kinds & {dict, list}:
        for row, value in enumerate(found):
            if isinstance(value, (dict, list)):
                nested.setdefault(row, {})[name] = value
    values = [value if value.__class__ is float else _number(value) for value in found]
    if None not in values:
        return Column(np.array(values, np.float64))
    present = np.array([value is not None for value in values], bool)
    return Column(np.array(values, np.float64), present) if present.any() else None


def _number(found: object) -> float | None:
    if isinstance(found, (float, int)):
        try:
            return float(found)
        except OverflowError:
            return math.inf if found > 0 else -math.inf
    return NON_FINITE.get(found) if isinstance(found, str) else None


def _outputs_loss(rows: list[dict[str, Any]], loss: Column | None) -> Column | None:
    """``loss`` completed by ``net_outputs.loss``, the article's place for it; None when there is nothing to complete."""
    if loss is not None and loss.present is None:
        return None
    values: list[object] = []
    for row in rows:
        outputs = row.get("net_outputs")
        own = _number(row.get("loss"))
        values.append(outputs.get("loss") if own is None and isinstance(outputs, Mapping) else own)
    return _column("loss", values, {})
