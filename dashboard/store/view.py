"""One series at one moment, for readers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.store.base import Extent, Gap, Ints
from dashboard.store.chunks import FloatColumn, IntColumn
from dashboard.store.pyramid import FoldView
from monitor_core.batch import Column


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch in which steps never go back: rows ``[start, stop)``. An evaluation's row repeats its step."""

    start: int
    stop: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SeriesView:
    """Rows in (attempt, seq) order. What it shows never changes: columns only grow, and ``rows`` and ``have`` say up to where."""

    rows: int
    layout: int
    attempt: IntColumn
    seq: IntColumn
    step: IntColumn
    epoch: IntColumn
    timestamp: FloatColumn
    metrics: Mapping[str, tuple[FloatColumn, int]]
    """Metric to its column and how many rows of it there are; the rows behind lack it."""
    counts: Mapping[str, tuple[int, int]]
    """Metric to ``(values, of them not finite)`` in all rows."""
    cuts: tuple[Cut, ...]
    folds: Mapping[int, FoldView]
    """First row of a stretch to its entries; short ones have none."""
    extent: Extent
    gaps: tuple[Gap, ...]

    def column(self, metric: str, start: int, stop: int) -> Column | None:
        """Some rows of a metric; None when the series has no such one."""
        found = self.metrics.get(metric)
        return None if found is None else found[0].read(start, stop, found[1])

    def steps(self, start: int, stop: int) -> Ints:
        """The steps of some rows."""
        return self.step.read(start, stop)

    def rows_between(self, cut: Cut, first: int, last: int) -> tuple[int, int]:
        """Rows ``[start, stop)`` of the stretch with steps from ``first`` to ``last``, inclusive."""
        rows = range(cut.start, cut.stop)
        start = 0 if first <= self.step.at(cut.start) else bisect_left(rows, first, key=self.step.at)
        stop = len(rows) if last >= self.step.at(cut.stop - 1) else bisect_right(rows, last, key=self.step.at)
        return cut.start + start, cut.start + max(start, stop)
