"""Time as an argument, so that tests own it and order never depends on it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: one to show to people, one to measure with."""

    def wall(self) -> float:
        """UTC seconds since 1970-01-01; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.perf_counter()
