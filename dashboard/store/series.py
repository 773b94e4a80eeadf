"""The columns of one run and rank: append-only chunks, and views that never change.

Rows are stored in order of arrival. Almost always that is also their order by (attempt, seq), and then a view is the chunks
themselves; when files were discovered out of order the view carries a permutation, and ``layout`` moves on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dashboard.store.base import MAX_GAPS, Appended, Extent, Floats, Gap, Ints
from dashboard.store.growing import GrowingColumn, GrowingInts
from dashboard.store.intervals import IntervalSet
from monitor_core.batch import Batch, Bools


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch in which steps never go back: rows ``[start, stop)`` in (attempt, seq) order. An evaluation's row repeats its step."""

    start: int
    stop: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One series at one moment. Arrays are views of memory that is never written again."""

    rows: int
    layout: int
    attempt: Ints
    seq: Ints
    step: Ints
    epoch: Ints
    timestamp: Floats
    values: Mapping[str, Floats]
    """Metric to value per row, NaN where absent; a metric that came up late may be shorter than ``rows``."""
    present: Mapping[str, Bools]
    """Metric to whether the row has it; same lengths."""
    counts: Mapping[str, tuple[int, int]]
    """Metric to ``(values, of them not finite)`` in all rows: counting a long run anew at every tick would cost the most of it."""
    order: Ints | None
    """Row numbers in (attempt, seq) order; None when that is the order of arrival."""
    cuts: tuple[Cut, ...]
    extent: Extent
    gaps: tuple[Gap, ...]


class Series:
    """Takes batches of one run and rank. One thread appends; views go to any thread."""

    def __init__(self) -> None:
        self._attempt, self._seq = GrowingInts(), GrowingInts()
        self._step, self._epoch = GrowingInts(), GrowingInts()
        self._timestamp = GrowingColumn()
        self._columns: dict[str, GrowingColumn] = {}
        self._seen: dict[int, IntervalSet] = {}
        self._expected: dict[int, int] = {}
        self._last: dict[str, float] = {}
        self._newest: tuple[int, int] = (-1, -1)
        self._step_range: tuple[int, int] | None = None
        self._time_range: tuple[float, float] = (np.nan, np.nan)
        self._cuts: list[Cut] = []
        self._newest_step = 0
        self._order: Ints | None = None
        self._layout = 0

    def append(self, batch: Batch) -> Appended:
        """Take the rows whose (attempt, seq) is new."""
        fresh = self._fresh(batch)
        if not fresh.all():
            batch = batch.take(fresh)
        duplicates = len(fresh) - len(batch)
        if len(batch):
            in_order = self._in_order(batch)
            start = len(self._step)
            self._store(batch)
            if in_order:
                self._extend_cuts(batch, start)
            else:
                self._sort()
            self._note(batch)
        return Appended(len(batch), duplicates)

    def expect(self, attempt: int, count: int) -> bool:
        """See ``Store``; whether that is news."""
        before = self._expected.get(attempt)
        self._expected[attempt] = count
        return before != count and attempt in self._seen

    def view(self) -> SeriesView:
        """The series as it is now."""
        rows = len(self._step)
        return SeriesView(
            rows, self._layout, self._attempt.view(), self._seq.view(), self._step.view(), self._epoch.view(),
            self._timestamp.values(), {name: column.values() for name, column in self._columns.items()},
            {name: column.present() for name, column in self._columns.items()},
            {name: column.counts() for name, column in self._columns.items()}, self._order, tuple(self._cuts),
            self._extent(rows), self._gaps(),
        )  # fmt: skip

    def _gaps(self) -> tuple[Gap, ...]:
        found = [
            Gap(attempt, first, stop - 1)
            for attempt, seen in sorted(self._seen.items())
            for first, stop in seen.gaps(self._expected.get(attempt, 0))
        ]
        return tuple(found[-MAX_GAPS:])

    def _fresh(self, batch: Batch) -> Bools:
        fresh = np.ones(len(batch), bool)
        for attempt in np.unique(batch.attempt).tolist():
            mine = np.flatnonzero(batch.attempt == attempt)
            seen = self._seen.setdefault(attempt, IntervalSet())
            fresh[mine] = seen.add(batch.seq[mine])
        return fresh

    def _in_order(self, batch: Batch) -> bool:
        """Whether the batch continues in (attempt, seq) order behind what is there."""
        if self._order is not None:
            return False
        first = (int(batch.attempt[0]), int(batch.seq[0]))
        attempt, seq = np.diff(batch.attempt), np.diff(batch.seq)
        return first > self._newest and bool(np.all((attempt > 0) | ((attempt == 0) & (seq > 0))))

    def _store(self, batch: Batch) -> None:
        start = len(self._step)
        self._attempt.append(batch.attempt)
        self._seq.append(batch.seq)
        self._step.append(batch.step)
        self._epoch.append(batch.epoch)
        self._timestamp.append(start, batch.timestamp, None)
        for name, column in batch.columns.items():
            self._columns.setdefault(name, GrowingColumn()).append(start, column.values, column.present)

    def _extend_cuts(self, batch: Batch, start: int) -> None:
        step, attempt = batch.step, batch.attempt
        breaks = np.flatnonzero((np.diff(step) < 0) | (np.diff(attempt) != 0)) + 1
        edges = [0, *breaks.tolist(), len(step)]
        for first, stop in pairwise(edges):
            last = self._cuts[-1] if self._cuts else None
            mine = int(attempt[first])
            joins = first == 0 and last is not None and last.attempt == mine and self._newest_step <= int(step[0])
            if joins and last is not None:
                self._cuts[-1] = Cut(last.start, start + stop, mine)
            else:
                self._cuts.append(Cut(start + first, start + stop, mine))
        self._newest_step = int(step[-1])

    def _sort(self) -> None:
        """A late batch: order all rows anew. Rare (files discovered out of order), and linear in practice."""
        attempt, seq, step = self._attempt.view(), self._seq.view(), self._step.view()
        order = np.lexsort((seq, attempt)).astype(np.int64)
        self._order = None if bool(np.all(np.diff(order) == 1)) else order
        self._layout += 1
        self._cuts = []
        ordered_step, ordered_attempt = step[order], attempt[order]
        breaks = np.flatnonzero((np.diff(ordered_step) < 0) | (np.diff(ordered_attempt) != 0)) + 1
        edges = [0, *breaks.tolist(), len(step)]
        for first, stop in pairwise(edges):
            self._cuts.append(Cut(first, stop, int(ordered_attempt[first])))
        self._newest_step = int(ordered_step[-1])

    def _note(self, batch: Batch) -> None:
        """Keep the extent up to date."""
        low, high = int(batch.step.min()), int(batch.step.max())
        self._step_range = (
            (low, high) if self._step_range is None else (min(low, self._step_range[0]), max(high, self._step_range[1]))
        )
        order = np.lexsort((batch.seq, batch.attempt))
        newest = (int(batch.attempt[order[-1]]), int(batch.seq[order[-1]]))
        late = newest < self._newest
        times = self._time_range
        first, last = float(batch.timestamp[order[0]]), float(batch.timestamp[order[-1]])
        self._time_range = (float(np.fmin(first, times[0])), times[1] if late else last)
        for name, column in batch.columns.items():
            rows = order[column.mask()[order]]
            if len(rows) and not (late and name in self._last):
                self._last[name] = float(column.values[rows[-1]])
        self._newest = max(newest, self._newest)

    def _extent(self, rows: int) -> Extent:
        low, high = self._step_range or (0, 0)
        return Extent(
            rows, low, high, self._time_range[0], self._time_range[1], tuple(sorted(self._seen)), tuple(self._columns),
            dict(self._last), sum(seen.missing(self._expected.get(attempt, 0)) for attempt, seen in self._seen.items()),
        )  # fmt: skip
