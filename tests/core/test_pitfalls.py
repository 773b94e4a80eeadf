"""The article's pitfalls that need no MindSpore, reproduced as it tells them and shown gone. See also tests/mindspore/test_pitfalls.py.

3.1 itself (a name that transformers has registered) is in test_config.py, memory at ``collect_freq=1`` in test_recorder.py.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import tracemalloc
import types
from pathlib import Path
from typing import Any

import pytest

from monitor_core.config import from_mapping
from monitor_core.logs import load_monitor_logs
from monitor_core.monitor import Recorder
from monitor_core.writers.file import FileSystem

RECORDS, BUFFER = 30_000, 500


def test_3_1_a_transformers_that_cannot_load_its_registry_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package imports its parts when they are first asked for; where that fails, there is no registry to clash with."""
    for error in (ModuleNotFoundError("no module named torch"), RuntimeError("failed to import configuration_auto")):

        class Lazy(types.ModuleType):
            raised = error

            def __getattr__(self, name: str) -> Any:
                raise self.raised

        monkeypatch.setitem(sys.modules, "transformers", Lazy("transformers"))
        assert from_mapping({"name": "aimv2"}).name == "aimv2"


class HungDisk(FileSystem):
    """A network disk that neither writes nor fails until it is let go."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.free = threading.Event()

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        self.asked.set()
        self.free.wait()
        return super().write_at(descriptor, data, offset)


def metrics(step: int) -> dict[str, float]:
    return {name: step + number / 7 for number, name in enumerate(("loss", "grad_norm", "step_time", "throughput"))}


def bytes_grown(action: Any) -> int:
    """Python memory that is still held after ``action``."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = action()
        grown = tracemalloc.get_traced_memory()[0] - before
        del held
        return grown
    finally:
        tracemalloc.stop()


def test_3_3_a_writer_that_hangs_costs_neither_memory_nor_time_and_its_gap_is_counted(tmp_path: Path) -> None:
    def as_told() -> list[str]:
        """One JSON object per step, kept until ``max_file_size`` is reached."""
        return [json.dumps({"step": step, **metrics(step)}) for step in range(RECORDS)]

    leak = bytes_grown(as_told)
    assert leak > 100 * RECORDS, "the article's way: memory grows with every step"

    disk = HungDisk()
    recorder = Recorder(
        from_mapping({"log_dir": tmp_path, "name": "hung", "buffer_size": BUFFER, "collect_freq": 1}), file_system=disk
    )
    recorder.open()
    try:
        recorder.record(0, 1, metrics(0))
        assert disk.asked.wait(10), "the writer is at the disk, and stays there"
        slowest = 0.0

        def train() -> None:
            nonlocal slowest
            for step in range(1, RECORDS):
                begun = time.perf_counter()
                recorder.record(step, 1, metrics(step))
                slowest = max(slowest, time.perf_counter() - begun)

        grown = bytes_grown(train)
        assert len(recorder._buffer) == BUFFER
        assert grown < leak / 10
        assert slowest < 1.0, "no step waited for the disk"
        assert recorder.dropped >= RECORDS - 2 * BUFFER
    finally:
        disk.free.set()
        receipt = recorder.close()
    df = load_monitor_logs(tmp_path)
    assert len(df) + receipt.dropped == RECORDS
    assert df["seq"].iloc[-1] == RECORDS - 1, "the newest are kept"
    (attempt,) = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert attempt["dropped"] == receipt.dropped == int((df["seq"].diff().dropna() - 1).sum()), "the gap is in the seq"
