"""What is pushed over HTTP: a run's header, its ``run.json`` when that is new, and records; in the form of a protobuf file. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

import monitor_core.formats.monitor_pb2 as pb
from monitor_core.batch import Batch
from monitor_core.errors import FormatError
from monitor_core.formats.frames import FRAME_OVERHEAD_BYTES, LENGTHS, frame, length_at
from monitor_core.formats.protobuf import MAGIC, ProtobufEncoder, ProtobufFormat
from monitor_core.limits import MAX_ATTEMPT, MAX_MANIFEST_BYTES, MAX_RANKS
from monitor_core.record import FileHeader, Record

CONTENT_TYPE = "application/x-protobuf"
_MAX_CELLS = 1 << 22  # rows times metrics: an honest body of 8 MiB has a quarter of it
_MAX_PIECES = (
    1 << 17
)  # batches times metrics: joined in a second; an honest body has a few batches of 4,096 metrics at most


class Payload(NamedTuple):
    """A body, taken apart."""

    header: FileHeader
    manifest: dict[str, Any] | None
    """``run.json`` as it is at the sender; None when it did not change."""
    batch: Batch


def encode_payload(header: FileHeader, records: Sequence[Record], manifest: Mapping[str, Any] | None) -> bytes:
    """The body of one POST. Raises FormatError for a record that the format cannot hold."""
    encoder = ProtobufEncoder(header)
    body = encoder.begin()
    if manifest is not None:
        text = json.dumps(manifest, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
        body += frame(pb.Frame(manifest=text).SerializeToString())
    return body + encoder.encode(records, first=True) if records else body


def decode_payload(body: bytes) -> Payload:
    """Raises FormatError, with the reason, for anything that is not one whole payload."""
    _within_caps(body)
    _, batch, problems = ProtobufFormat().decode(ProtobufFormat().start(), body, final=True)
    if problems:
        first = problems[0]
        raise FormatError(f"body: {first.kind} at byte {first.offset}: {first.reason}")
    header: FileHeader | None = None
    manifest: dict[str, Any] | None = None
    for message in _messages(body):
        if message.HasField("header"):
            header = _header(message.header)
        elif message.HasField("manifest"):
            manifest = _manifest(message.manifest)
    if header is None:
        raise FormatError(
            "body: expected a Header frame; send the bytes of a monitor_*.pb file, its beginning included"
        )
    return Payload(header, manifest, batch)


def _within_caps(body: bytes) -> None:
    """Raise FormatError where joining the batches would cost far more than the bytes suggest: many small ones of different metrics."""
    rows = batches = 0
    names: set[str] = set()
    for message in _messages(body):
        if message.HasField("batch"):
            batches += 1
            rows += len(message.batch.seq) // 8
            names.update(column.name for column in message.batch.columns)
    if rows * len(names) > _MAX_CELLS or batches * len(names) > _MAX_PIECES:
        raise FormatError(
            f"body: {batches} batches of {rows} rows with {len(names)} metrics; expected at most {_MAX_CELLS} values in "
            f"{_MAX_PIECES} columns: send fewer records at once"
        )


def _messages(body: bytes) -> Iterator[pb.FrameView]:
    view, position = memoryview(body), len(MAGIC)
    while position + LENGTHS.size <= len(body):
        length = length_at(view, position)
        if length is None:
            raise FormatError(f"body: no frame at byte {position}")
        start = position + LENGTHS.size
        try:
            yield pb.FrameView.FromString(body[start : start + length])
        except DecodeError as error:
            raise FormatError(f"body: the frame at byte {position} is no msmon.v1.Frame: {error}") from error
        position += FRAME_OVERHEAD_BYTES + length


def _header(found: pb.Header) -> FileHeader:
    if not 1 <= found.attempt <= MAX_ATTEMPT:
        raise FormatError(f"header: attempt {found.attempt}; expected 1 to {MAX_ATTEMPT}")
    if not 1 <= found.world_size <= MAX_RANKS or found.rank >= found.world_size:
        raise FormatError(
            f"header: rank {found.rank} of {found.world_size}; expected a rank below a size of at most {MAX_RANKS}"
        )
    if not math.isfinite(found.created):
        raise FormatError(f"header: created {found.created}; expected UTC seconds since 1970-01-01")
    return FileHeader(found.run, found.rank, found.world_size, found.attempt, found.created, found.host, found.pid)


def _manifest(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest: {len(raw)} bytes; expected at most {MAX_MANIFEST_BYTES}")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest: expected run.json as JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"manifest: expected an object, got {type(value).__name__}")
    return value
