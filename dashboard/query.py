"""Windows as aligned bins: every extreme of the data survives at every zoom. Pure.

Bin ``b`` of width ``2**k`` covers steps ``[b * 2**k, (b + 1) * 2**k)``. As bounds are aligned, an old bin never changes when a run
grows, so a live page needs only the bins that new rows touched, and pictures stay stable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dashboard.store.base import ColumnRows, Floats, Ints, Rows, Segment, Window, WindowQuery
from dashboard.store.series import Cut, SeriesView
from monitor_core.batch import Column

_EMPTY_INTS: Ints = np.empty(0, np.int64)
_EMPTY_FLOATS: Floats = np.empty(0, np.float64)
_FIRST = np.zeros(1, np.intp)
#: Newest stretches that a window shows. A run is resumed a few times; a log that counts steps anew in every epoch goes back
#: thousands of times, and each stretch would cost a picture of its own that nobody could tell from the others. The page says so.
MAX_SEGMENTS = 48


def shift_for(first_step: int, last_step: int, columns: int) -> int:
    """Smallest ``k`` for which bins of ``2**k`` steps cover the range in at most ``columns`` bins."""
    columns = max(1, columns)
    shift = max(0, (last_step - first_step + 1) // columns).bit_length() - 1 if last_step > first_step else 0
    shift = max(0, shift)
    while (last_step >> shift) - (first_step >> shift) + 1 > columns and shift < 63:
        shift += 1
    return shift


def window_of(view: SeriesView, query: WindowQuery) -> Window:
    """The bins of one metric of one series; an empty window when there is nothing to show."""
    first = view.extent.first_step if query.first_step is None else query.first_step
    last = view.extent.last_step if query.last_step is None else query.last_step
    shift = shift_for(first, last, query.columns)
    values = view.values.get(query.metric)
    if values is None or last < first:
        return Window(1 << shift, view.rows, view.layout, 0, 0)
    cutter = _Cutter(view, query.metric, shift, first, last)
    cuts = view.cuts[-MAX_SEGMENTS:]
    ghosts = _superseded(view, cuts)
    since = query.since_rows if len(cuts) < MAX_SEGMENTS else 0  # at the limit a new stretch moves all others' places
    segments = tuple(cutter.segment(cut, ghost, since) for cut, ghost in zip(cuts, ghosts, strict=True))
    left_out = len(cuts) < len(view.cuts)
    return Window(1 << shift, view.rows, view.layout, cutter.points, cutter.nonfinite, segments, left_out)


def ordered(view: SeriesView, metric: str) -> tuple[Ints, Ints, Floats]:
    """``(attempt, step, value)`` of every row that has the metric, in (attempt, seq) order, at full resolution."""
    values = view.values.get(metric)
    if values is None:
        return _EMPTY_INTS, _EMPTY_INTS, _EMPTY_FLOATS
    rows = np.flatnonzero(view.present[metric])
    if view.order is not None:
        place = np.empty(view.rows, np.int64)
        place[view.order] = np.arange(view.rows)
        rows = rows[np.argsort(place[rows])]
    return view.attempt[rows], view.step[rows], values[rows]


def columns_of(view: SeriesView, start: int, stop: int, metrics: Sequence[str]) -> ColumnRows:
    """Rows ``start`` to ``stop`` in (attempt, seq) order, as arrays."""
    stop = min(stop, view.rows)
    chosen = slice(start, stop) if view.order is None else view.order[start:stop]
    return ColumnRows(view.layout, view.step[chosen], [_column(view, metric, chosen) for metric in metrics])


def rows_of(view: SeriesView, start: int, stop: int, metrics: Sequence[str]) -> Rows:
    """The same as lists."""
    found = columns_of(view, start, stop, metrics)
    count = len(found.step)
    return Rows(found.layout, found.step.tolist(), [_optional(column, count) for column in found.columns])


def _column(view: SeriesView, metric: str, chosen: slice | Ints) -> Column | None:
    values = view.values.get(metric)
    if values is None:
        return None
    present = view.present[metric]
    lack = view.rows - len(values)
    if lack:  # the metric has stopped before the newest rows
        values = np.concatenate((values, np.full(lack, np.nan)))
        present = np.concatenate((present, np.zeros(lack, bool)))
    mask = present[chosen]
    return Column(values[chosen], None if mask.all() else mask)


def _optional(column: Column | None, count: int) -> list[float | None]:
    if column is None:
        return [None] * count
    found: list[float | None] = column.values.tolist()
    for row in np.flatnonzero(~column.mask()).tolist():
        found[row] = None
    return found


def _superseded(view: SeriesView, cuts: Sequence[Cut]) -> list[int | None]:
    """For each cut the first of its steps that a later cut wrote again."""
    found: list[int | None] = []
    earliest: int | None = None
    for cut in reversed(cuts):
        first, last = _step_at(view, cut.start), _step_at(view, cut.stop - 1)
        found.append(max(first, earliest) if earliest is not None and earliest <= last else None)
        earliest = first if earliest is None else min(first, earliest)
    return found[::-1]


def _step_at(view: SeriesView, place: int) -> int:
    return int(view.step[place if view.order is None else view.order[place]])


class _Cutter:
    """Makes segments of one metric; counts the points it passed."""

    def __init__(self, view: SeriesView, metric: str, shift: int, first: int, last: int) -> None:
        self._view = view
        self._values = view.values[metric]
        self._present = view.present[metric]
        self._shift = shift
        self._first, self._last = first, last
        self._whole = first <= view.extent.first_step and last >= view.extent.last_step
        self.points, self.nonfinite = view.counts[metric] if self._whole else (0, 0)

    def segment(self, cut: Cut, ghost: int | None, since_rows: int) -> Segment:
        """The cut's bins; only those touched by rows from ``since_rows`` on."""
        step, values, present = self._rows(cut)
        low = int(np.searchsorted(step, self._first, "left"))
        high = int(np.searchsorted(step, self._last, "right"))
        if not self._whole:
            self._count(values[low:high], present[low:high])
        if since_rows > 0:
            low = max(low, self._touched_from(cut, step, since_rows))
        if low >= high:
            return _empty(cut.attempt, ghost)
        return self._bins(cut.attempt, ghost, step[low:high], values[low:high], present[low:high])

    def _rows(self, cut: Cut) -> tuple[Ints, Floats, NDArray[np.bool_]]:
        view = self._view
        have = len(self._values)
        if view.order is None:
            stop = min(cut.stop, max(cut.start, have))
            return view.step[cut.start : stop], self._values[cut.start : stop], self._present[cut.start : stop]
        rows = view.order[cut.start : cut.stop]
        rows = rows[rows < have]
        return view.step[rows], self._values[rows], self._present[rows]

    def _touched_from(self, cut: Cut, step: Ints, since_rows: int) -> int:
        """Place in the cut of the first row whose bin holds a row from ``since_rows`` on."""
        if self._view.order is not None:
            return 0  # layout has changed or a late batch came: give the whole cut
        fresh = max(0, since_rows - cut.start)
        if fresh >= len(step):
            return len(step)
        return int(np.searchsorted(step, (int(step[fresh]) >> self._shift) << self._shift, "left"))

    def _count(self, values: Floats, present: NDArray[np.bool_]) -> None:
        points = int(np.count_nonzero(present))
        self.points += points
        self.nonfinite += points - int(np.count_nonzero(np.isfinite(values)))  # an absent row holds NaN

    def _bins(self, attempt: int, ghost: int | None, step: Ints, values: Floats, present: NDArray[np.bool_]) -> Segment:
        finite = np.isfinite(values)
        bad_step, bad_value = self._nonfinite(step, values, present & ~finite)
        if not finite.all():
            step, values = step[finite], values[finite]
        if not len(step):
            return Segment(attempt, ghost, *_no_bins(), bad_step, bad_value)
        place = step >> self._shift
        begins = np.concatenate((_FIRST, np.flatnonzero(place[1:] != place[:-1]) + 1))
        ends = np.append(begins[1:], len(step)) - 1
        count = ends - begins + 1
        return Segment(
            attempt, ghost, step[begins], step[ends], np.minimum.reduceat(values, begins),
            np.maximum.reduceat(values, begins), values[begins], values[ends], _means(values, begins, count), count,
            bad_step, bad_value,
        )  # fmt: skip

    def _nonfinite(self, step: Ints, values: Floats, bad: NDArray[np.bool_]) -> tuple[Ints, Floats]:
        """The first of each kind in each bin."""
        if not bad.any():
            return _EMPTY_INTS, _EMPTY_FLOATS
        step, values = step[bad], values[bad]
        kind = np.where(np.isnan(values), 0, np.where(values > 0, 1, 2))
        _, rows = np.unique((step >> self._shift) * 3 + kind, return_index=True)
        rows.sort()
        return step[rows], values[rows]


def _means(values: Floats, begins: NDArray[np.intp], count: NDArray[np.intp]) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        means: Floats = np.add.reduceat(values, begins) / count
    if not np.isfinite(means).all():  # the sum of a bin is beyond the largest float: divide first
        means = np.add.reduceat(values / np.repeat(count, count), begins)
    return means


def _no_bins() -> tuple[Ints, Ints, Floats, Floats, Floats, Floats, Floats, Ints]:
    ints, floats = _EMPTY_INTS, _EMPTY_FLOATS
    return ints, ints, floats, floats, floats, floats, floats, ints


def _empty(attempt: int, ghost: int | None) -> Segment:
    return Segment(attempt, ghost, *_no_bins(), _EMPTY_INTS, _EMPTY_FLOATS)
