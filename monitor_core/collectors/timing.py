"""Times between hooks, in seconds on a clock that never goes back.

    epoch_begin . (fetch data . step_begin . network . step_end)*

``step_time`` of a step runs from the previous step's end (for an epoch's first step: from the epoch's begin, so that evaluation
between epochs is not counted) to its own end. ``data_wait_time`` is its part before ``step_begin``: fetching data.
"""

from __future__ import annotations

from monitor_core.clock import Clock


class StepTimer:
    """Follows the hooks of one training."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self._start: float | None = None
        self._begun: float | None = None

    def epoch_begin(self) -> None:
        """Data fetching starts now."""
        self._start = self._now()
        self._begun = None

    def step_begin(self) -> None:
        """Data is there; the network runs now."""
        self._begun = self._now()

    def step_end(self, samples: int | None) -> dict[str, float]:
        """``step_time``, ``data_wait_time`` (both s) and ``throughput`` (samples/s), as far as the hooks before allow."""
        end = self._now()
        start, begun = self._start, self._begun
        self._start, self._begun = end, None
        if start is None:
            return {}
        found = {"step_time": end - start}
        if begun is not None:
            found["data_wait_time"] = begun - start
        if samples and end > start:
            found["throughput"] = samples / (end - start)
        return found
