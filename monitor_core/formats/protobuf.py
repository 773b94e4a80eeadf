"""Protobuf: small, checksummed, and read a column at a time.

Bytes of a file: ``MAGIC`` (8), then frames (``frames.py``). Each payload is one ``msmon.v1.Frame`` of ``monitor.proto``:
first a ``Header``, then columnar ``Batch`` messages, written and read through wire-compatible views (``BatchView``)
whose packed fields are plain bytes. Network file systems may show a file's new length before its bytes: zeros at the
very end of a growing file are therefore waited for, not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from google.protobuf.message import DecodeError

import monitor_core.formats.monitor_pb2 as pb
from monitor_core.batch import NO_EPOCH, Batch, Column, Floats, Ints
from monitor_core.errors import FormatError
from monitor_core.formats.base import Decoded, Problem
from monitor_core.formats.common import Parts, check, cut_short, plain, refusing, report
from monitor_core.formats.frames import CRC, FRAME_OVERHEAD_BYTES, LENGTHS, find_frame, frame, is_damaged, length_at
from monitor_core.limits import MAX_ATTEMPT, MAX_FRAME_BYTES, MAX_METRICS, MAX_NESTED_BYTES
from monitor_core.record import RESERVED_NAMES, FileHeader, Record

MAGIC = b"\x89MSMON\r\n"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ProtobufState:
    """How far a protobuf file is read."""

    offset: int = 0
    lost_from: int | None = None
    """Where unreadable bytes began whose end is not found yet."""


class ProtobufEncoder:
    """Appends frames."""

    overlap = 0

    def __init__(self, header: FileHeader) -> None:
        self._header = header

    def begin(self) -> bytes:
        facts = self._header._replace(run=plain(self._header.run), host=plain(self._header.host))
        header = pb.Header(version=VERSION, **facts._asdict())
        return MAGIC + frame(pb.Frame(header=header).SerializeToString())

    def accepts(self, records: Sequence[Record]) -> bool:
        return True

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        parts: list[list[Record]] = []
        with refusing(records):
            for record in records:  # one message holds one attempt
                check(record)
                if not parts or parts[-1][0].attempt != record.attempt:
                    parts.append([])
                parts[-1].append(record)
            return b"".join([piece for part in parts for piece in _frames(part)])


def _frames(records: Sequence[Record]) -> list[bytes]:
    """One frame, or several where one would exceed what readers take."""
    names: dict[str, object] = {}
    for record in records:
        names.update(record.scalars)
    if len(names) <= MAX_METRICS:
        payload = _payload(records, names)
        if len(payload) <= MAX_FRAME_BYTES:
            return [frame(payload)]
    middle = len(records) // 2  # a single record is below both caps
    return [*_frames(records[:middle]), *_frames(records[middle:])]


def _payload(records: Sequence[Record], names: Iterable[str]) -> bytes:
    scalars = [record.scalars for record in records]
    batch = pb.BatchView(
        attempt=records[0].attempt,
        seq=np.array([r.seq for r in records], "<i8").tobytes(),
        step=np.array([r.step for r in records], "<i8").tobytes(),
        epoch=np.array([NO_EPOCH if r.epoch is None else r.epoch for r in records], "<i8").tobytes(),
        timestamp=np.array([r.timestamp for r in records], "<f8").tobytes(),
        columns=[_column(name, scalars) for name in names],
        nested=[pb.Nested(row=row, json=_json(r)) for row, r in enumerate(records) if r.nested],
    )
    return pb.FrameView(batch=batch).SerializeToString()


def _column(name: str, rows: Sequence[Mapping[str, float]]) -> pb.ColumnView:
    absent = b""
    try:
        found = [row[name] for row in rows]
    except KeyError:
        found = [row.get(name, 0.0) for row in rows]
        absent = np.packbits([name not in row for row in rows], bitorder="little").tobytes()
    values = np.array(found)
    if values.dtype.kind not in "fiub":  # numpy would turn None into NaN: refuse it as float() does
        values = np.array([float(value) for value in found])
    return pb.ColumnView(name=plain(name), values=values.astype("<f8", copy=False).tobytes(), absent=absent)


def _json(record: Record) -> str:
    text = orjson.dumps({plain(name): value for name, value in record.nested.items()})
    if len(text) > MAX_NESTED_BYTES:
        raise FormatError(
            f"record seq {record.seq}: nested values of {len(text)} bytes as JSON; expected at most {MAX_NESTED_BYTES}"
        )
    return text.decode()


class ProtobufFormat:
    """``monitor_00001.pb``."""

    name = "protobuf"
    suffix = ".pb"

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> ProtobufEncoder:
        return ProtobufEncoder(header)

    def start(self) -> ProtobufState:
        return ProtobufState()

    def decode(self, state: ProtobufState, data: bytes, *, final: bool = False) -> Decoded:
        reader = _Reader(state, data, final)
        reader.run()
        if final:
            reader.finish()
        after = ProtobufState(reader.at(reader.position), reader.lost_from)
        return Decoded(after, reader.parts.join(), tuple(reader.problems))


class _Reader:
    """One ``decode`` call over ``data``, whose first byte lies at the state's offset."""

    def __init__(self, state: ProtobufState, data: bytes, final: bool) -> None:
        self.base = state.offset
        self.data = data
        self.final = final
        self.view = memoryview(data)
        self.position = 0
        self.lost_from = state.lost_from
        self.parts = Parts()
        self.problems: list[Problem] = []

    def at(self, position: int) -> int:
        """Place in the file of a place in ``data``."""
        return self.base + position

    def run(self) -> None:
        """Take whole frames until the rest is unfinished."""
        if self.base == 0 and not self._magic():
            return
        while len(self.data) - self.position >= LENGTHS.size:
            length = length_at(self.view, self.position)
            if length is None:
                # The header itself may be shown in part: zeros from its last byte on are enough to wait.
                if self._unfilled(self.position + LENGTHS.size - 1) or not self._resync():
                    return
                continue
            end = self.position + FRAME_OVERHEAD_BYTES + length
            if end > len(self.data):
                return
            if is_damaged(self.view, self.position, length):
                if self._unfilled(end - CRC.size):
                    return
                self._skip_damaged(end)
            else:
                self._found()
                self._take(self.position, length)
                self.position = end

    def finish(self) -> None:
        """The file grows no more: what is left is cut short."""
        rest = len(self.data) - self.position
        if rest and self.lost_from is None:
            self.problems.append(cut_short(self.at(self.position), rest, "frame"))
        self.position = len(self.data)
        self._found()

    def _magic(self) -> bool:
        head = self.data[: len(MAGIC)]
        if len(head) < len(MAGIC) and MAGIC.startswith(head):
            return False
        if head == MAGIC:
            self.position = len(MAGIC)
        elif self._unfilled(0):
            return False
        else:
            self.lost_from = 0
        return True

    def _unfilled(self, position: int) -> bool:
        """Whether all bytes from here on are zeros that may still be filled."""
        return not self.final and not self.data[position:].strip(b"\0")

    def _resync(self) -> bool:
        """Go to the next place whose length and checksum agree; False when ``data`` holds none."""
        if self.lost_from is None:
            self.lost_from = self.at(self.position)
        found = find_frame(self.data, self.position + 1, len(self.data))
        self.position = len(self.data) - LENGTHS.size + 1 if found is None else found
        return found is not None

    def _skip_damaged(self, end: int) -> None:
        """Go to the end of a frame with wrong bytes, or to a frame that begins within it: bytes may be missing."""
        if self.lost_from is None:
            self.lost_from = self.at(self.position)
        found = find_frame(self.data, self.position + 1, min(end + LENGTHS.size, len(self.data)))
        self.position = end if found is None else found
        self._found("the frame's CRC-32 does not match its payload")

    def _found(self, reason: str = "expected a frame (length and its CRC-32 agree); skipped to the next one") -> None:
        """The lost bytes, if any, end here."""
        if self.lost_from is not None:
            length = self.at(self.position) - self.lost_from
            report(self.problems, Problem("corrupt", self.lost_from, length, reason))
            self.lost_from = None

    def _take(self, position: int, length: int) -> None:
        start = position + LENGTHS.size
        try:
            message = pb.FrameView.FromString(self.data[start : start + length])
            if message.HasField("batch"):
                self.parts.add(_batch(message.batch))
        except (DecodeError, ValueError) as error:
            reason = f"the frame's payload is no msmon.v1.Frame: {error}"
            report(self.problems, Problem("corrupt", self.at(position), length + FRAME_OVERHEAD_BYTES, reason))


def _batch(view: pb.BatchView) -> Batch:
    rows = len(view.seq) // 8
    if view.attempt > MAX_ATTEMPT:
        raise ValueError(f"attempt {view.attempt}; expected at most {MAX_ATTEMPT}")
    if len(view.columns) > MAX_METRICS:
        raise ValueError(f"{len(view.columns)} columns are more than the cap of {MAX_METRICS}")
    columns = {}
    for column in view.columns:
        if column.name not in RESERVED_NAMES:
            columns[column.name] = _read_column(column, rows)
    return Batch(
        _ints(view.seq, rows, "seq"),
        np.full(rows, view.attempt, np.int64),
        _ints(view.step, rows, "step"),
        _ints(view.epoch, rows, "epoch"),
        _floats(view.timestamp, rows, "timestamp"),
        columns,
        _nested(view, rows),
    )


def _read_column(column: pb.ColumnView, rows: int) -> Column:
    values = _floats(column.values, rows, column.name)
    if not column.absent:
        return Column(values)
    if len(column.absent) != (rows + 7) // 8:
        raise ValueError(f"column {column.name!r}: {len(column.absent)} bytes of absence for {rows} rows")
    absent = np.unpackbits(np.frombuffer(column.absent, np.uint8), count=rows, bitorder="little").astype(bool)
    return Column(np.where(absent, np.nan, values), ~absent)


def _floats(raw: bytes, rows: int, name: str) -> Floats:
    if len(raw) != rows * 8:
        raise ValueError(f"column {name!r}: {len(raw)} bytes for {rows} rows of 8")
    return np.frombuffer(raw, "<f8").astype(np.float64, copy=False)


def _ints(raw: bytes, rows: int, name: str) -> Ints:
    if len(raw) != rows * 8:
        raise ValueError(f"column {name!r}: {len(raw)} bytes for {rows} rows of 8")
    return np.frombuffer(raw, "<i8").astype(np.int64, copy=False)


def _nested(view: pb.BatchView, rows: int) -> dict[int, Mapping[str, object]]:
    nested: dict[int, Mapping[str, object]] = {}
    for item in view.nested:
        if item.row >= rows or len(item.json) > MAX_NESTED_BYTES:
            raise ValueError(f"nested values of row {item.row}: out of range or above {MAX_NESTED_BYTES} bytes")
        value = orjson.loads(item.json)
        if not isinstance(value, dict):
            raise ValueError(f"nested values of row {item.row}: expected an object")
        nested[item.row] = value
    return nested
