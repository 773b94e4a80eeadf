"""Windows as aligned bins: every extreme of the data survives at every zoom. Pure.

Bin ``b`` of width ``2**k`` covers steps ``[b * 2**k, (b + 1) * 2**k)``. As bounds are aligned, an old bin never changes when a run
grows, so a live page needs only the bins that new rows touched, and pictures stay stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dashboard.store.base import ColumnRows, Floats, Ints, Rows, Segment, Window, WindowQuery
from dashboard.store.pyramid import KINDS, NO_ENTRIES, TRACKS, Entries, Level, entries_of, merged
from dashboard.store.view import Cut, SeriesView
from monitor_core.batch import Column

_EMPTY_INTS: Ints = np.empty(0, np.int64)
_EMPTY_FLOATS: Floats = np.empty(0, np.float64)
_FIELDS = ("first_step", "last_step", "min", "max", "first", "last", "mean", "count")
#: Changes between usable and too wide entries that are followed one by one (a run that logs less often from some step on).
MAX_PIECES = 8
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
    if query.metric not in view.metrics or last < first:
        return Window(1 << shift, view.rows, view.layout, 0, 0)
    whole = first <= view.extent.first_step and last >= view.extent.last_step
    cuts = view.cuts[-MAX_SEGMENTS:]
    ghosts = _superseded(view, cuts)
    since = query.since_rows if len(cuts) < MAX_SEGMENTS else 0  # at the limit a new stretch moves all others' places
    segments: list[Segment] = []
    points, nonfinite = view.counts[query.metric] if whole else (0, 0)
    for cut, ghost in zip(cuts, ghosts, strict=True):
        start, stop = view.rows_between(cut, first, last)
        fresh = max(start, _touched_from(view, cut, shift, since))
        tracks = Bins(view, cut, query.metric, shift).tracks(fresh if whole else start, stop)
        if not whole:
            counts = [int(track["count"].sum()) for track in tracks]
            points, nonfinite = points + sum(counts), nonfinite + sum(counts[1:])
            tracks = [_from_row(track, fresh) for track in tracks]
        segments.append(_segment(cut.attempt, ghost, tracks))
    left_out = len(cuts) < len(view.cuts)
    return Window(1 << shift, view.rows, view.layout, points, nonfinite, tuple(segments), left_out)


def ordered(view: SeriesView, metric: str) -> tuple[Ints, Ints, Floats]:
    """``(attempt, step, value)`` of every row that has the metric, in (attempt, seq) order, at full resolution."""
    column = view.column(metric, 0, view.rows)
    if column is None:
        return _EMPTY_INTS, _EMPTY_INTS, _EMPTY_FLOATS
    rows = column.mask()
    return view.attempt.read(0, view.rows)[rows], view.steps(0, view.rows)[rows], column.values[rows]


def columns_of(view: SeriesView, start: int, stop: int, metrics: Sequence[str]) -> ColumnRows:
    """Rows ``start`` to ``stop`` in (attempt, seq) order, as arrays."""
    stop = max(start, min(stop, view.rows))
    columns = [view.column(metric, start, stop) for metric in metrics]
    return ColumnRows(view.layout, view.steps(start, stop), columns)


def rows_of(view: SeriesView, start: int, stop: int, metrics: Sequence[str]) -> Rows:
    """The same as lists."""
    found = columns_of(view, start, stop, metrics)
    count = len(found.step)
    return Rows(found.layout, found.step.tolist(), [_optional(column, count) for column in found.columns])


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
        first, last = view.step.at(cut.start), view.step.at(cut.stop - 1)
        found.append(max(first, earliest) if earliest is not None and earliest <= last else None)
        earliest = first if earliest is None else min(first, earliest)
    return found[::-1]


def _touched_from(view: SeriesView, cut: Cut, shift: int, since_rows: int) -> int:
    """First row of the stretch whose bin holds a row from ``since_rows`` on."""
    if since_rows <= cut.start:
        return cut.start
    if since_rows >= cut.stop:
        return cut.stop
    first = (view.step.at(since_rows) >> shift) << shift
    return view.rows_between(cut, first, view.step.at(cut.stop - 1))[0]


def _from_row(track: Entries, row: int) -> Entries:
    """The bins from that of ``row`` on, which is the first row of its bin or of the window."""
    return track[int(np.searchsorted(track["first_row"], row)) :]


def _segment(attempt: int, ghost: int | None, tracks: Sequence[Entries]) -> Segment:
    bins = tracks[0]
    bad_step = np.concatenate([track["first_step"] for track in tracks[1:]])
    bad_row = np.concatenate([track["first_row"] for track in tracks[1:]])
    bad_value = np.repeat(KINDS, [len(track) for track in tracks[1:]])
    order = np.argsort(bad_row)
    column = {name: np.ascontiguousarray(bins[name]) for name in _FIELDS}
    return Segment(
        attempt, ghost, nonfinite_step=bad_step[order], nonfinite_value=bad_value[order], **column
    )  # fmt: skip


Levels = tuple[Level, ...]


class Bins:
    """Finds the bins of some rows of a stretch from as few entries and rows as there may be."""

    def __init__(self, view: SeriesView, cut: Cut, metric: str, shift: int) -> None:
        self._view, self._metric, self._shift = view, metric, shift
        fold = view.folds.get(cut.start)
        self._folded = fold.folded if fold else cut.start
        self._tracks = fold.tracks.get(metric, ()) if fold else ()
        self._read: dict[tuple[int, int], tuple[Entries, ...]] = {}

    def tracks(self, start: int, stop: int) -> list[Entries]:
        """One array of entries per track, an entry for each bin that is not empty."""
        return [self._track(number, start, stop) for number in range(TRACKS)]

    def _track(self, number: int, start: int, stop: int) -> Entries:
        levels = self._tracks[number] if self._tracks else ()
        parts: list[Entries] = []
        if levels:  # a track without entries has no folded rows
            self._collect(parts, number, levels, start, min(stop, self._folded))
        self._rows(parts, number, max(start, self._folded), stop)
        parts = [part for part in parts if len(part)]
        if not parts:
            return NO_ENTRIES
        return merged(np.concatenate(parts) if len(parts) > 1 else parts[0], self._shift)

    def _collect(self, parts: list[Entries], number: int, levels: Levels, start: int, stop: int) -> None:
        """Rows ``start`` to ``stop``, all folded, from the highest of ``levels`` that is fine enough, else from the rows."""
        if start >= stop:
            return
        if not levels:
            self._rows(parts, number, start, stop)
            return
        (entries, cover), below = levels[-1], levels[:-1]
        end = min(stop, cover)
        low = int(np.searchsorted(entries["first_row"], start))
        high = int(np.searchsorted(entries["last_row"], end))
        if low and entries["last_row"][low - 1] >= start:  # an entry that begins before
            self._collect(parts, number, below, start, min(end, int(entries["last_row"][low - 1]) + 1))
        if low < high:
            self._usable(parts, number, below, entries[low:high])
        if low <= high < len(entries) and entries["first_row"][high] < end:  # one that goes on behind
            self._collect(parts, number, below, int(entries["first_row"][high]), end)
        if below:  # what the lowest level does not cover has no values
            self._collect(parts, number, below, max(start, cover), stop)

    def _usable(self, parts: list[Entries], number: int, below: Levels, entries: Entries) -> None:
        """Those that lie in one bin each, and what stands below the others."""
        fits = entries["first_step"] >> self._shift == entries["last_step"] >> self._shift
        edges = np.flatnonzero(fits[1:] != fits[:-1]) + 1
        if len(edges) > MAX_PIECES:  # the level is too wide, only some of its entries are small by chance
            fits, edges = np.zeros(len(fits), bool), _EMPTY_INTS
        for first, stop in pairwise([0, *edges.tolist(), len(fits)]):
            if fits[first]:
                parts.append(entries[first:stop])
            else:
                start, end = int(entries["first_row"][first]), int(entries["last_row"][stop - 1]) + 1
                self._collect(parts, number, below, start, end)

    def _rows(self, parts: list[Entries], number: int, start: int, stop: int) -> None:
        """Straight from the rows; all tracks usually ask for the same ones."""
        if start >= stop:
            return
        if (start, stop) not in self._read:
            column = self._view.column(self._metric, start, stop)
            if column is None:
                return
            self._read[start, stop] = entries_of(self._view.steps(start, stop), column, start, self._shift)
        parts.append(self._read[start, stop][number])
