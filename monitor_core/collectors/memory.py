"""Memory and CPU of this process, and memory of the device."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from monitor_core.clock import Clock

#: CPU use needs a stretch of time to be measured over, and costs more to ask for than memory does.
CPU_INTERVAL_S = 0.5
_STATM = Path("/proc/self/statm")

NO_DEVICE_MEMORY = "the device reports no memory figures (they are 0 on CPU); host_memory is recorded instead"


class HostUsage:
    """``host_memory`` (resident bytes) and ``cpu_percent`` (100 is one core busy) of this process."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._process = psutil.Process()
        self._resident = resident_bytes(self._process)
        # psutil measures between two calls, and its first answer is 0 because nothing came before: ask once now.
        self._process.cpu_percent(None)
        self._last = self._now() - CPU_INTERVAL_S  # so that the first record has it, and CSV its column

    def collect(self) -> dict[str, float]:
        """Memory of every step; CPU use when at least ``CPU_INTERVAL_S`` have passed since it was last measured."""
        found = {"host_memory": float(self._resident())}
        now = self._now()
        if now - self._last >= CPU_INTERVAL_S:
            self._last = now
            found["cpu_percent"] = self._process.cpu_percent(None)
        return found


def resident_bytes(process: psutil.Process) -> Callable[[], int]:
    """What tells this process's resident memory (bytes).

    On Linux it reads an open ``statm`` again: psutil opens and parses the file anew each time, at every step.
    """
    if not _STATM.is_file():
        return lambda: int(process.memory_info().rss)
    descriptor, page = _open_statm(process.pid), os.sysconf("SC_PAGE_SIZE")
    return lambda: int(os.pread(descriptor, 128, 0).split()[1]) * page


@functools.cache
def _open_statm(process_id: int) -> int:
    """One descriptor for all Monitors of a process, for good; a forked child opens its own, as the parent's shows the parent."""
    return os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)


class DeviceMemory:
    """``memory_peak`` and ``memory_allocated`` (bytes) as the framework's functions give them; None where the device does not count."""

    def __init__(self, peak: Callable[[], int] | None, allocated: Callable[[], int] | None) -> None:
        self._peak = peak
        self._allocated = allocated

    def collect(self) -> dict[str, float]:
        """Nothing where the device does not count, or has not allocated anything yet."""
        peak = self._peak() if self._peak else 0
        if peak <= 0:
            return {}
        return {"memory_peak": float(peak), "memory_allocated": float(self._allocated() if self._allocated else 0)}

    def absent(self) -> Mapping[str, str]:
        """Why there is nothing, if so."""
        return {} if self._peak else dict.fromkeys(("memory_peak", "memory_allocated"), NO_DEVICE_MEMORY)
