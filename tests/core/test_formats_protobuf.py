"""Protobuf: the published layout, its generated code, its checksums, and finding the next frame."""

from __future__ import annotations

import math
import random
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monitor_core.formats.monitor_pb2 as pb
from monitor_core.formats import FORMATS
from monitor_core.formats import protobuf as protobuf_module
from monitor_core.formats.base import Problem
from monitor_core.formats.frames import find_frame, frame, length_at
from monitor_core.limits import MAX_BATCH_CELLS, MAX_FRAME_BYTES, MAX_METRICS, MAX_NESTED_BYTES
from monitor_core.record import FileHeader, Record

ROOT = Path(__file__).parents[2]
PROTO = "monitor_core/formats/monitor.proto"
PROTOBUF = FORMATS["protobuf"]
HEADER = FileHeader("run", 3, 8, 2, 1.5, "host", 99)
MAGIC = b"\x89MSMON\r\n"
RECORDS = [
    Record(0, 2, 10, None, 5.5, {"loss": math.nan, "lr": 1e-5}, {"input_shapes": [[2, 3]]}),
    Record(1, 2, 11, 4, 6.0, {"loss": -0.0}),
    Record(2, 2, 2**53 + 1, 4, 6.5, {"loss": math.inf, "lr": 0.0}),
]


def contents(*batches: list[Record]) -> bytes:
    encoder = PROTOBUF.encoder(HEADER, batches[0])
    return encoder.begin() + b"".join([encoder.encode(batch, first=False) for batch in batches])


def frames(data: bytes) -> list[bytes]:
    """Payloads of a sound file, taken apart by the published layout alone."""
    assert data[:8] == MAGIC
    found, position = [], 8
    while position < len(data):
        length, check = struct.unpack_from("<II", data, position)
        assert check == zlib.crc32(data[position : position + 4])
        payload = data[position + 8 : position + 8 + length]
        assert struct.unpack_from("<I", data, position + 8 + length)[0] == zlib.crc32(payload)
        found.append(payload)
        position += 12 + length
    return found


def decoded(data: bytes, *, final: bool = True) -> tuple[list[Record], tuple[Problem, ...]]:
    _, batch, problems = PROTOBUF.decode(PROTOBUF.start(), data, final=final)
    return list(batch.records()), problems


def test_a_reader_of_the_published_schema_finds_everything() -> None:
    header, batch = map(pb.Frame.FromString, frames(contents(RECORDS)))
    assert header.header == pb.Header(
        version=1, run="run", rank=3, world_size=8, attempt=2, created=1.5, host="host", pid=99
    )
    found = batch.batch
    assert found.attempt == 2
    assert list(found.seq) == [0, 1, 2]
    assert list(found.step) == [10, 11, 2**53 + 1]
    assert list(found.epoch) == [-1, 4, 4]
    assert list(found.timestamp) == [5.5, 6.0, 6.5]
    loss, rate = found.columns
    assert (loss.name, str(list(loss.values)), loss.absent) == ("loss", "[nan, -0.0, inf]", b"")
    assert (rate.name, list(rate.values)[::2], rate.absent) == ("lr", [1e-5, 0.0], b"\x02")
    assert [(item.row, item.json) for item in found.nested] == [(0, '{"input_shapes":[[2,3]]}')]


def test_what_the_published_schema_writes_is_read() -> None:
    columns = [pb.Column(name="loss", values=[1.5, 0.0], absent=b"\x02"), pb.Column(name="seq", values=[9, 9])]
    batch = pb.Batch(attempt=1, seq=[4, 5], step=[-1, 2], epoch=[-1, 1], timestamp=[0.5, 1.5], columns=columns)
    records, problems = decoded(MAGIC + frame(pb.Frame(batch=batch).SerializeToString()))
    assert problems == ()
    assert records == [Record(4, 1, -1, None, 0.5, {"loss": 1.5}), Record(5, 1, 2, 1, 1.5, {})]


def test_an_attempt_change_within_a_batch_begins_a_new_message() -> None:
    changed = [*RECORDS, RECORDS[0]._replace(attempt=3)]
    assert [pb.Frame.FromString(payload).batch.attempt for payload in frames(contents(changed))[1:]] == [2, 3]


def test_generated_code_is_what_the_published_file_gives(tmp_path: Path) -> None:
    source = (ROOT / PROTO).read_text("utf-8")
    command = re.search(r"Generate with: python (-m grpc_tools\.protoc .*)", source)
    assert command is not None
    target = tmp_path / PROTO
    target.parent.mkdir(parents=True)
    target.write_text(source, "utf-8")
    subprocess.run([sys.executable, *command[1].split()], cwd=tmp_path, check=True, timeout=60)
    for name in ("monitor_pb2.py", "monitor_pb2.pyi"):
        made = (target.parent / name).read_text("utf-8")
        assert made == (ROOT / "monitor_core" / "formats" / name).read_text("utf-8"), f"run: python {command[1]}"


def test_generated_code_asks_for_no_newer_runtime_than_the_package_does() -> None:
    code = (ROOT / "monitor_core/formats/monitor_pb2.py").read_text("utf-8")
    asked = re.search(r"Protobuf Python Version: ([\d.]+)", code)
    pinned = re.search(r'"protobuf>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert asked is not None
    assert pinned is not None
    assert tuple(map(int, asked[1].split("."))) <= tuple(map(int, pinned[1].split(".")))


def test_no_single_flipped_bit_changes_a_value_or_hides_a_loss() -> None:
    batches = [[record] for record in RECORDS]
    data = contents(*batches)
    wanted = {repr(record) for record in decoded(data)[0]}
    assert len(wanted) == 3
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found, problems = decoded(bytes(damaged))
        kept = {repr(record) for record in found}
        assert kept <= wanted, bit
        assert len(kept) >= 2, "one bit costs one frame"
        assert [problem.kind for problem in problems] == ["corrupt"], bit
        assert problems[0].offset <= bit // 8 < problems[0].offset + problems[0].length


def test_a_damaged_frame_is_reported_with_its_place_and_length() -> None:
    whole, first = contents(RECORDS[:1], RECORDS[1:2]), contents(RECORDS[:1])
    start = len(contents(RECORDS[:1])) - len(contents(RECORDS[:1], RECORDS[:1])) + len(first)
    damaged = bytearray(whole)
    damaged[start + 20] ^= 0xFF
    _, problems = decoded(bytes(damaged), final=False)
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", start, len(first) - start)]
    assert problems[0].reason == "the frame's CRC-32 does not match its payload"


@pytest.mark.parametrize("missing", [1, 7, 8, 9, 30])
def test_bytes_missing_within_a_frame_do_not_cost_the_next_one(missing: int) -> None:
    start = len(contents(RECORDS[:1]))
    data = contents(RECORDS[:1], RECORDS[1:2], RECORDS[2:])
    found, problems = decoded(data[: start + 15] + data[start + 15 + missing :])
    assert [record.seq for record in found] == [0, 2]
    assert [(p.kind, p.offset) for p in problems] == [("corrupt", start)]


def test_a_broken_head_is_passed_over_to_the_first_frame() -> None:
    data = contents(RECORDS)
    records, problems = decoded(b"not a file of ours" + data[8:])
    assert len(records) == 3
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", 0, 18)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"step": bytes(8)}, "column 'step': 8 bytes for 3 rows"),
        ({"timestamp": b""}, "column 'timestamp': 0 bytes for 3 rows"),
        ({"attempt": 2**31}, "attempt 2147483648"),
        ({"columns": [pb.ColumnView(name="a", values=bytes(25))]}, "column 'a': 25 bytes"),
        ({"columns": [pb.ColumnView(name="a", values=bytes(24), absent=b"\x01\x02")]}, "2 bytes of absence"),
        ({"columns": [pb.ColumnView(name=str(n)) for n in range(MAX_METRICS + 1)]}, "4097 columns"),
        ({"nested": [pb.Nested(row=3, json="{}")]}, "nested values of row 3: out of range"),
        ({"nested": [pb.Nested(row=0, json=" " * MAX_NESTED_BYTES + "{}")]}, "above 65536 bytes"),
        ({"nested": [pb.Nested(row=0, json="[]")]}, "expected an object"),
        ({"nested": [pb.Nested(row=0, json="{")]}, "no msmon.v1.Frame"),
    ],
)
def test_a_sound_frame_with_a_message_that_makes_no_sense_costs_only_itself(
    change: dict[str, object], reason: str
) -> None:
    head = {"attempt": 1, "seq": bytes(24), "step": bytes(24), "epoch": bytes(24), "timestamp": bytes(24)}
    payload = pb.FrameView(batch=pb.BatchView(**{**head, **change})).SerializeToString()
    good = contents(RECORDS)
    records, problems = decoded(good + frame(payload) + good[8:])
    assert len(records) == 6
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", len(good), len(payload) + 12)]
    assert reason in problems[0].reason


def test_a_payload_that_is_no_protobuf_at_all_costs_only_itself() -> None:
    records, problems = decoded(contents(RECORDS) + frame(b"\xff" * 50))
    assert (len(records), len(problems)) == (3, 1)


def test_a_length_above_the_cap_is_no_frame() -> None:
    length = struct.pack("<I", MAX_FRAME_BYTES + 1)
    data = contents(RECORDS) + length + struct.pack("<I", zlib.crc32(length)) + bytes(100)
    assert [(p.kind, p.length) for p in decoded(data)[1]] == [("corrupt", 108)]


def test_sparse_frames_cannot_exhaust_memory() -> None:
    rows = 4096

    def sparse(number: int) -> bytes:
        columns = [pb.ColumnView(name=f"{number}-{k}", values=bytes(8 * rows)) for k in range(10)]
        column = bytes(8 * rows)
        batch = pb.BatchView(attempt=1, seq=column, step=column, epoch=column, timestamp=column, columns=columns)
        return frame(pb.FrameView(batch=batch).SerializeToString())

    data = MAGIC + b"".join(sparse(number) for number in range(40))
    _, batch, problems = PROTOBUF.decode(PROTOBUF.start(), data)
    assert 0 < len(batch) * len(batch.columns) <= MAX_BATCH_CELLS
    assert problems
    assert {problem.kind for problem in problems} == {"corrupt"}


def test_a_batch_with_more_metrics_than_one_frame_may_have_becomes_several() -> None:
    records = [Record(n, 1, n, None, 0.0, {f"{n}-{k}": float(k) for k in range(3000)}) for n in range(3)]
    data = contents(records)
    assert len(frames(data)) == 4
    found, problems = decoded(data)
    assert (found, problems) == (records, ())


def test_a_batch_larger_than_a_frame_becomes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_module, "MAX_FRAME_BYTES", 200)
    records = [Record(n, 1, n, None, 0.0, {"loss": float(n)}) for n in range(20)]
    data = contents(records)
    assert all(len(payload) <= 200 for payload in frames(data))
    assert decoded(data) == (records, ())


@given(st.binary(max_size=80), st.lists(st.binary(max_size=10), max_size=3), st.integers(0, 40), st.integers(0, 120))
@settings(deadline=None, max_examples=300)
def test_looking_for_a_frame_everywhere_at_once_is_looking_at_each_place(
    noise: bytes, payloads: list[bytes], start: int, end: int
) -> None:
    data = noise + b"".join(frame(payload) + noise[:5] for payload in payloads)
    end = min(end, len(data))
    places = [place for place in range(start, end - 7) if length_at(memoryview(data), place) is not None]
    assert find_frame(data, start, end) == (places[0] if places else None)


def test_a_frame_is_found_behind_megabytes_of_noise() -> None:
    noise = random.Random(5).randbytes(3_000_001)
    data = noise + frame(b"payload")
    assert find_frame(data, 0, len(data)) == len(noise)
    assert find_frame(data, 0, len(noise)) is None
