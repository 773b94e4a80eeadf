"""Collectors that need no MindSpore: memory of the device and of this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from monitor_core.clock import SystemClock
from monitor_core.collectors import memory
from monitor_core.collectors.memory import CPU_INTERVAL_S, DeviceMemory, HostUsage


class Clock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_host_memory_is_what_psutil_says_at_every_step() -> None:
    usage = HostUsage(SystemClock())
    before = usage.collect()["host_memory"]
    block = bytearray(b"x" * 50_000_000)
    after = usage.collect()["host_memory"]
    assert after - before > 40_000_000
    assert after == pytest.approx(psutil.Process().memory_info().rss, abs=5_000_000)
    del block


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this platform does not list descriptors")
def test_many_monitors_share_one_descriptor() -> None:
    kept = [HostUsage(SystemClock())]
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept += [HostUsage(SystemClock()) for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


FORKED = """
import os
from monitor_core.clock import SystemClock
from monitor_core.collectors.memory import HostUsage
mine = HostUsage(SystemClock()).collect()["host_memory"]
child = os.fork()
if child == 0:
    block = bytearray(b"x" * 80_000_000)
    print(HostUsage(SystemClock()).collect()["host_memory"] - mine, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_sees_its_own_memory() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 50_000_000


def test_another_platform_asks_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_STATM", Path("/nowhere"))
    assert HostUsage(SystemClock()).collect()["host_memory"] == pytest.approx(
        psutil.Process().memory_info().rss, abs=5_000_000
    )


def test_cpu_use_is_asked_for_now_and_then() -> None:
    clock = Clock()
    usage = HostUsage(clock)
    assert "cpu_percent" in usage.collect()
    assert "cpu_percent" not in usage.collect()
    clock.now = CPU_INTERVAL_S
    assert "cpu_percent" in usage.collect()


def test_a_device_that_has_allocated_nothing_yet_is_not_called_unable() -> None:
    peak = [0]
    device = DeviceMemory(lambda: peak[0], lambda: 7)
    assert (device.collect(), device.absent()) == ({}, {})
    peak[0] = 9
    assert device.collect() == {"memory_peak": 9.0, "memory_allocated": 7.0}
    nothing = DeviceMemory(None, None)
    assert nothing.collect() == {}
    assert set(nothing.absent()) == {"memory_peak", "memory_allocated"}
