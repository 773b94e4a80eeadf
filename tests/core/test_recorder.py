"""The recorder without any framework: receipts, bounds, failing disks, forks, restarts, manifests."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor_core.config import from_mapping
from monitor_core.detectors import Finding
from monitor_core.logs import load_monitor_logs
from monitor_core.manifest import from_json
from monitor_core.monitor import Recorder
from monitor_core.writers.file import FileSystem


class FailingDisk(FileSystem):
    """Refuses to write while ``full``."""

    def __init__(self) -> None:
        self.full = False

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write_at(descriptor, data, offset)


@pytest.fixture
def recorders() -> Iterator[list[Recorder]]:
    made: list[Recorder] = []
    yield made
    for recorder in made:
        recorder.close()


def recorder(
    folder: Path, made: list[Recorder], disk: FileSystem | None = None, found: Any = None, **config: object
) -> Recorder:
    made.append(
        Recorder(from_mapping({"log_dir": folder, "name": "test", **config}), file_system=disk, on_finding=found)
    )
    made[-1].open()
    return made[-1]


def attempts(folder: Path) -> list[Any]:
    return list(from_json(json.loads((folder / "run.json").read_text())).attempts)


def test_a_receipt_covers_every_record_before_it(tmp_path: Path, recorders: list[Recorder]) -> None:
    one = recorder(tmp_path, recorders, collect_freq=1000, max_file_size=10**6)
    for step in range(137):
        one.record(step, 1, {"loss": float(step)})
    receipt = one.flush(durable=True)
    assert receipt == (136, True, 0)
    assert len(load_monitor_logs(tmp_path)) == 137


def test_records_appear_without_a_flush(tmp_path: Path, recorders: list[Recorder]) -> None:
    """A slow training is live all the same: the flusher writes after its interval."""
    one = recorder(tmp_path, recorders, collect_freq=1000, max_file_size=10**6)
    one.record(1, 1, {"loss": 1.0})
    deadline = threading.Event()
    for _ in range(60):
        if list(tmp_path.glob("monitor_*.json")) and len(load_monitor_logs(tmp_path)) == 1:
            return
        deadline.wait(0.1)
    pytest.fail("no record within six seconds")


def test_a_full_disk_loses_nothing_within_the_bound_and_recovers_by_itself(
    tmp_path: Path, recorders: list[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()
    one = recorder(tmp_path, recorders, disk, collect_freq=1, buffer_size=1000)
    one.record(0, 1, {"loss": 0.0})
    one.flush()
    disk.full = True
    with caplog.at_level(logging.ERROR, "msmon"):
        for step in range(1, 500):
            one.record(step, 1, {"loss": float(step)})
        stuck = one.flush()
    assert stuck.last_seq == 0
    assert "No space left on device" in caplog.text
    assert "free disk space" in caplog.text
    disk.full = False
    assert one.flush().last_seq == 499
    assert list(load_monitor_logs(tmp_path)["seq"]) == list(range(500))
    assert len({record.message for record in caplog.records}) == len(caplog.records), (
        "each message once, not once per try"
    )


def test_a_disk_that_stays_full_drops_the_oldest_and_counts_them(tmp_path: Path, recorders: list[Recorder]) -> None:
    disk = FailingDisk()
    one = recorder(tmp_path, recorders, disk, collect_freq=10**6, buffer_size=100, max_file_size=10**9)
    disk.full = True
    for step in range(5000):
        one.record(step, 1, {"loss": float(step)})
    one.flush()
    disk.full = False
    receipt = one.close()
    df = load_monitor_logs(tmp_path)
    assert receipt.dropped > 0
    assert len(df) + receipt.dropped == 5000
    assert df["seq"].iloc[-1] == 4999
    assert attempts(tmp_path)[-1].dropped == receipt.dropped
    assert attempts(tmp_path)[-1].last_seq == 4999


def test_what_is_unwritten_at_the_end_is_counted_too_and_only_in_its_attempt(
    tmp_path: Path, recorders: list[Recorder]
) -> None:
    disk = FailingDisk()
    one = recorder(tmp_path, recorders, disk, buffer_size=100, collect_freq=10, export_format=["json", "csv"])
    for step in range(50):
        one.record(step, 1, {"loss": 1.0})
    one.flush()
    disk.full = True
    for step in range(50, 500):
        one.record(step, 1, {"loss": 1.0})
    receipt = one.close()
    assert (receipt.last_seq, receipt.dropped) == (49, 450)
    disk.full = False
    one.open()
    one.record(500, 1, {"loss": 1.0})
    assert one.close().dropped == 0
    assert [(a.attempt, a.last_seq, a.dropped) for a in attempts(tmp_path)] == [(1, 499, 450), (2, 0, 0)]
    df = load_monitor_logs(tmp_path)
    assert df["step"].tolist() == [*range(50), 500], "what was given up does not come back in the next attempt"


def test_a_disk_that_hangs_holds_up_no_exit_and_shares_its_files_with_no_second_thread(
    tmp_path: Path, recorders: list[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hung(FileSystem):
        free = threading.Event()

        def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
            self.free.wait(30)
            return super().write_at(descriptor, data, offset)

    monkeypatch.setattr("monitor_core.monitor.CLOSE_TIMEOUT_S", 1.0)
    one = recorder(tmp_path, recorders, Hung())
    one.record(0, 1, {"loss": 1.0})
    begun = time.monotonic()
    receipt = one.close()
    assert 0.9 < time.monotonic() - begun < 1.9, "the limit holds for all of close"
    assert (receipt.last_seq, receipt.durable) == (-1, False)
    with pytest.raises(OSError, match="has not yet taken the records of attempt 1"):
        one.open()
    Hung.free.set()
    assert one._thread is not None
    one._thread.join(10)
    assert [(a.status, a.last_seq, a.dropped) for a in attempts(tmp_path)] == [("finished", 0, 0)]
    one.open()
    assert one.is_open


def test_a_record_that_no_format_can_hold_costs_only_itself(
    tmp_path: Path, recorders: list[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    one = recorder(tmp_path, recorders, collect_freq=10)
    with caplog.at_level(logging.ERROR, "msmon"):
        for step in range(10):
            one.record(step, 1, {"seq" if step == 4 else "loss": 1.0})
        receipt = one.flush()
    assert receipt.dropped == 1
    assert list(load_monitor_logs(tmp_path)["seq"]) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert "seq" in caplog.text


def test_all_formats_at_once_hold_the_same(tmp_path: Path, recorders: list[Recorder]) -> None:
    one = recorder(tmp_path, recorders, export_format=["json", "csv", "protobuf"])
    for step in range(200):
        one.record(step, None, {"loss": step / 7, "grad_norm": float("nan")})
    one.close()
    for suffix in (".json", ".csv", ".pb"):
        folder = tmp_path / suffix.removeprefix(".")
        folder.mkdir()
        for path in tmp_path.glob(f"monitor_*{suffix}"):
            (folder / path.name).write_bytes(path.read_bytes())
        df = load_monitor_logs(folder)
        assert list(df["loss"]) == [step / 7 for step in range(200)]
        assert df["grad_norm"].isna().all()
        assert df["epoch"].isna().all()


def test_restarts_take_the_next_attempt_and_the_next_file(tmp_path: Path, recorders: list[Recorder]) -> None:
    for _ in range(3):
        one = recorder(tmp_path, recorders)
        one.record(1, 1, {"loss": 1.0})
        one.close("finished")
    assert [(a.attempt, a.status) for a in attempts(tmp_path)] == [(1, "finished"), (2, "finished"), (3, "finished")]
    assert [path.name for path in sorted(tmp_path.glob("monitor_*"))] == [f"monitor_0000{n}.json" for n in (1, 2, 3)]
    (tmp_path / "run.json").write_text("{ damaged")
    one = recorder(tmp_path, recorders)
    one.record(1, 1, {"loss": 1.0})
    one.close()
    assert attempts(tmp_path)[-1].attempt == 4, "found in the monitor files, as the manifest is lost"


def test_two_recorders_in_one_directory_get_two_attempts_and_two_files(
    tmp_path: Path, recorders: list[Recorder]
) -> None:
    both = [recorder(tmp_path, recorders) for _ in range(2)]
    for step in range(50):
        for one in both:
            one.record(step, 1, {"loss": 1.0})
    for one in both:
        one.close()
    df = load_monitor_logs(tmp_path)
    assert len(df) == 100
    assert sorted(df["attempt"].unique()) == [1, 2]
    assert [a.status for a in attempts(tmp_path)] == ["finished", "finished"]


def test_findings_are_told_and_appended_as_facts(tmp_path: Path, recorders: list[Recorder]) -> None:
    told: list[Finding] = []
    one = recorder(tmp_path, recorders, found=told.append, collect_freq=1)
    for step in range(30):
        one.record(step, 1, {"loss": float("nan") if step == 20 else 1.0})
    one.close()
    assert [(finding.kind, finding.first_step) for finding in told] == [("non_finite", 20)]
    facts = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(fact["type"], fact["kind"], fact["first_step"], fact["attempt"]) for fact in facts] == [
        ("finding", "non_finite", 20, 1)
    ]


def test_evaluations_between_steps_hide_no_finding(tmp_path: Path, recorders: list[Recorder]) -> None:
    """An evaluation in every window would make an oscillation invisible if its record counted as a loss that is missing."""
    found: list[Finding] = []
    one = recorder(tmp_path, recorders, found=found.append)
    for step in range(1, 301):
        one.record(step, 1, {"loss": 0.1 if step % 2 else 2.0})
        if step % 30 == 0:
            one.record(step, 1, {"eval_loss": 0.5})
    one.flush()
    assert [(item.kind, item.first_step) for item in found] == [("loss_oscillation", 100)]


def test_ranks_never_share_a_file(tmp_path: Path, recorders: list[Recorder]) -> None:
    config = from_mapping({"log_dir": tmp_path, "name": "ranks"})
    for rank in range(3):
        one = Recorder(config, rank=rank, world_size=3)
        recorders.append(one)
        one.open()
        one.record(1, 1, {"loss": float(rank)})
        one.close()
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("monitor_*")) == [
        f"rank_{rank}/monitor_00001.json" for rank in range(3)
    ]
    df = load_monitor_logs(tmp_path)
    assert list(df["rank"]) == list(df["loss"]) == [0, 1, 2]


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    code = """
import os, sys
from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder
one = Recorder(from_mapping({"log_dir": sys.argv[1], "name": "fork", "collect_freq": 1}))
one.open()
one.record(1, 1, {"loss": 1.0})
one.flush()
if os.fork() == 0:
    assert not one.is_open
    one.record(2, 1, {"loss": 2.0})
    one.flush(timeout_s=0.2)
    one.close()
    sys.exit(0)
os.wait()
one.record(3, 1, {"loss": 3.0})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], check=True, timeout=60)
    assert list(load_monitor_logs(tmp_path)["step"]) == [1, 3]
    ended = attempts(tmp_path)[-1]
    assert (ended.status, ended.reason) == ("stopped", "the program ended before train_end")


def test_a_killed_training_keeps_what_its_receipts_covered(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder
one = Recorder(from_mapping({"log_dir": sys.argv[1], "name": "kill", "export_format": sys.argv[2]}))
one.open()
for step in range(1000):
    one.record(step, 1, {"loss": float(step)})
print(one.flush().last_seq, flush=True)
for step in range(1000, 1100):
    one.record(step, 1, {"loss": float(step)})
os.kill(os.getpid(), signal.SIGKILL)
"""
    for format_ in ("json", "csv", "protobuf"):
        folder = tmp_path / format_
        killed = subprocess.run(
            [sys.executable, "-c", code, str(folder), format_], capture_output=True, text=True, timeout=60, check=False
        )
        assert killed.returncode == -9
        last = int(killed.stdout)
        df = load_monitor_logs(folder)
        assert list(df["seq"])[: last + 1] == list(range(last + 1))
        assert (df["loss"] == df["step"]).all()
        made: list[Recorder] = []
        one = recorder(folder, made)
        one.close()
        assert [a.status for a in attempts(folder)] == ["vanished", "finished"]


def test_memory_stays_bounded_at_collect_freq_1(tmp_path: Path, recorders: list[Recorder]) -> None:
    """Pitfall 3.3 of the article: one JSON object per step piling up in memory until the file is full."""
    import psutil

    one = recorder(tmp_path, recorders, collect_freq=1, max_file_size=10**9, buffer_size=4096)
    scalars = dict.fromkeys("abcdefghij", 1.0)
    process = psutil.Process()
    for step in range(20_000):
        one.record(step, 1, dict(scalars))
    before = process.memory_info().rss
    for step in range(20_000, 120_000):
        one.record(step, 1, dict(scalars))
    growth = process.memory_info().rss - before
    assert growth < 30e6, f"{growth / 1e6:.0f} MB more after 100,000 records"
    assert one._buffer.capacity == 4096


def test_nothing_is_started_by_the_constructor(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # one of a test before may end meanwhile
    Recorder(from_mapping({"log_dir": tmp_path, "name": "quiet"}))
    assert set(threading.enumerate()) <= before
    assert os.listdir(tmp_path) == []  # noqa: PTH208
