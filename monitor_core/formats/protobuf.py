"""Protobuf: small, checksummed, and read a column at a time.

Bytes of a file: ``MAGIC`` (8), then frames::

    length u32le | crc32(length) u32le | payload (length bytes) | crc32(payload) u32le

Each payload is one ``msmon.v1.Frame`` of ``monitor.proto``: first a ``Header``, then columnar ``Batch`` messages. The
length has a checksum of its own, so that a damaged length never makes a reader wait for gigabytes; behind a damaged
frame the reader scans for the next place where length and checksum agree. Columns are written and read through
wire-compatible views (``BatchView``) whose packed fields are plain bytes. Network file systems may show a file's new
length before its bytes: zeros at the very end of a growing file are therefore waited for, not reported.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from google.protobuf.message import DecodeError

from monitor_core.batch import NO_EPOCH, Batch, Column, Floats, Ints, concat
from monitor_core.errors import FormatError
from monitor_core.formats import monitor_pb2 as pb
from monitor_core.formats.base import Decoded, Problem
from monitor_core.limits import MAX_FRAME_BYTES, MAX_METRICS, MAX_NESTED_BYTES
from monitor_core.record import RESERVED_NAMES, FileHeader, Record

MAGIC = b"\x89MSMON\r\n"
VERSION = 1
_LENGTHS = struct.Struct("<II")
_CRC = struct.Struct("<I")
_FRAME_OVERHEAD_BYTES = _LENGTHS.size + _CRC.size


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
        header = pb.Header(version=VERSION, **self._header._asdict())
        return MAGIC + frame(pb.Frame(header=header).SerializeToString())

    def accepts(self, records: Sequence[Record]) -> bool:
        return True

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        parts: list[list[Record]] = []
        for record in records:  # one message holds one attempt
            if not parts or parts[-1][0].attempt != record.attempt:
                parts.append([])
            parts[-1].append(record)
        return b"".join([frame(_payload(part)) for part in parts])


def frame(payload: bytes) -> bytes:
    """A payload with its length and both checksums."""
    length = _CRC.pack(len(payload))
    return b"".join((length, _CRC.pack(zlib.crc32(length)), payload, _CRC.pack(zlib.crc32(payload))))


def _payload(records: Sequence[Record]) -> bytes:
    batch = pb.BatchView(
        attempt=records[0].attempt,
        seq=np.array([r.seq for r in records], "<i8").tobytes(),
        step=np.array([r.step for r in records], "<i8").tobytes(),
        epoch=np.array([NO_EPOCH if r.epoch is None else r.epoch for r in records], "<i8").tobytes(),
        timestamp=np.array([r.timestamp for r in records], "<f8").tobytes(),
        columns=[_column(name, records) for name in dict.fromkeys(n for r in records for n in r.scalars)],
        nested=[pb.Nested(row=row, json=_json(r.nested)) for row, r in enumerate(records) if r.nested],
    )
    return pb.FrameView(batch=batch).SerializeToString()


def _column(name: str, records: Sequence[Record]) -> pb.ColumnView:
    if name in RESERVED_NAMES:
        raise FormatError(f"metric {name!r}: the name is reserved by the record itself; choose another name")
    absent = [name not in r.scalars for r in records]
    return pb.ColumnView(
        name=name.encode("utf-8", "backslashreplace").decode("utf-8"),
        values=np.array([r.scalars.get(name, 0.0) for r in records], "<f8").tobytes(),
        absent=np.packbits(absent, bitorder="little").tobytes() if any(absent) else b"",
    )


def _json(nested: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(dict(nested)).decode()
    except (TypeError, UnicodeEncodeError) as error:
        raise FormatError(f"nested values {list(nested)!r} cannot be written as JSON: {error}") from error


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
        return Decoded(ProtobufState(reader.at(reader.position), reader.lost_from), concat(reader.batches),
                       tuple(reader.problems))  # fmt: skip


class _Reader:
    """One ``decode`` call over ``data``, whose first byte lies at the state's offset."""

    def __init__(self, state: ProtobufState, data: bytes, final: bool) -> None:
        self.base = state.offset
        self.data = data
        self.final = final
        self.view = memoryview(data)
        self.position = 0
        self.lost_from = state.lost_from
        self.batches: list[Batch] = []
        self.problems: list[Problem] = []

    def at(self, position: int) -> int:
        """Place in the file of a place in ``data``."""
        return self.base + position

    def run(self) -> None:
        """Take whole frames until the rest is unfinished."""
        if self.base == 0 and not self._magic():
            return
        while len(self.data) - self.position >= _LENGTHS.size:
            length = self._length(self.position)
            if length is None:
                if self._unfilled(self.position) or not self._resync():
                    return
                continue
            end = self.position + _FRAME_OVERHEAD_BYTES + length
            if end > len(self.data):
                return
            damaged = self._damaged(self.position, length)
            if damaged and self._unfilled(end - _CRC.size):
                return
            self._found()
            self._take(self.position, length, damaged)
            self.position = end

    def finish(self) -> None:
        """The file grows no more: what is left is cut short."""
        rest = len(self.data) - self.position
        if self.lost_from is not None:
            self.position = len(self.data)
            self._found()
        elif rest:
            reason = "the file ends inside a frame: its writer was stopped in mid-write"
            self.problems.append(Problem("truncated", self.at(self.position), rest, reason))
            self.position = len(self.data)

    def _magic(self) -> bool:
        head = self.data[: len(MAGIC)]
        if len(head) < len(MAGIC) and MAGIC.startswith(head):
            return False
        if head == MAGIC:
            self.position = len(MAGIC)
        else:
            self.lost_from = 0
        return True

    def _unfilled(self, position: int) -> bool:
        """Whether all bytes from here on are zeros that may still be filled."""
        return not self.final and not self.data[position:].strip(b"\0")

    def _damaged(self, position: int, length: int) -> bool:
        start = position + _LENGTHS.size
        (check,) = _CRC.unpack_from(self.data, start + length)
        return bool(zlib.crc32(self.view[start : start + length]) != check)

    def _length(self, position: int) -> int | None:
        """Length of the payload of a frame that begins here, or None if none does."""
        length, check = _LENGTHS.unpack_from(self.data, position)
        if length > MAX_FRAME_BYTES or zlib.crc32(self.view[position : position + 4]) != check:
            return None
        return int(length)

    def _resync(self) -> bool:
        """Go to the next place whose length and checksum agree; False when ``data`` holds none."""
        if self.lost_from is None:
            self.lost_from = self.at(self.position)
        last = len(self.data) - _LENGTHS.size
        position = self.position + 1
        while position <= last:
            if self._length(position) is not None:
                self.position = position
                return True
            position += 1
        self.position = last + 1
        return False

    def _found(self) -> None:
        if self.lost_from is None:
            return
        length = self.at(self.position) - self.lost_from
        reason = "expected a frame (length and its CRC-32 agree); skipped to the next one"
        self.problems.append(Problem("corrupt", self.lost_from, length, reason))
        self.lost_from = None

    def _take(self, position: int, length: int, damaged: bool) -> None:
        if damaged:
            self._corrupt(position, length, "the frame's CRC-32 does not match its payload")
            return
        start = position + _LENGTHS.size
        try:
            message = pb.FrameView.FromString(self.data[start : start + length])
            if message.HasField("batch"):
                self.batches.append(_batch(message.batch))
        except (DecodeError, ValueError) as error:
            self._corrupt(position, length, f"the frame's payload is no msmon.v1.Frame: {error}")

    def _corrupt(self, position: int, length: int, reason: str) -> None:
        self.problems.append(Problem("corrupt", self.at(position), length + _FRAME_OVERHEAD_BYTES, reason))


def _batch(view: pb.BatchView) -> Batch:
    rows = len(view.seq) // 8
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
