"""The columns of one run and rank, in (attempt, seq) order, and views that never change.

Almost always rows arrive in that order. Late ones (files discovered out of order) wait until somebody asks for a view; then all that
wait are sorted in at once, only the rows behind the first of them are written anew, and ``layout`` moves on.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.store.base import MAX_GAPS, Appended, Extent, Gap
from dashboard.store.chunks import CHUNK_ROWS, Chunks, FloatColumn, IntColumn
from dashboard.store.intervals import IntervalSet
from dashboard.store.pyramid import LEAST_CLOSED, LEAST_FOLD, Fold, FoldView
from dashboard.store.view import Cut, SeriesView
from monitor_core.batch import Batch, Bools, concat

_INTS = ("attempt", "seq", "step", "epoch")


class _Tally:
    """Values, non-finite values and the newest value of a metric, counted when somebody asks."""

    def __init__(self) -> None:
        self.rows = self.points = self.nonfinite = 0
        self.last: float | None = None

    def count(self, column: FloatColumn) -> None:
        """Go on to the end of the column."""
        while self.rows < column.rows:
            stop = min(column.rows, (self.rows // CHUNK_ROWS + 1) * CHUNK_ROWS)
            part = column.read(self.rows, stop, stop)
            values = part.values if part.present is None else part.values[part.present]
            self.points += len(values)
            self.nonfinite += len(values) - int(np.count_nonzero(np.isfinite(values)))
            if len(values):
                self.last = float(values[-1])
            self.rows = stop


class Series:
    """Takes batches of one run and rank. Not safe for threads by itself; its views are."""

    def __init__(self) -> None:
        self._ints = {name: IntColumn() for name in _INTS}
        self._timestamp = FloatColumn()
        self._columns: dict[str, FloatColumn] = {}
        self._tallies: dict[str, _Tally] = {}
        self._seen: dict[int, IntervalSet] = {}
        self._expected: dict[int, int] = {}
        self._newest: tuple[int, int] = (-1, -1)
        self._step_range: tuple[int, int] | None = None
        self._first_time = np.nan
        self._cuts: list[Cut] = []
        self._folds: dict[int, Fold] = {}
        self._folded_cuts = 0
        self._late: list[Batch] = []
        self._layout = 0

    def append(self, batch: Batch) -> Appended:
        """Take the rows whose (attempt, seq) is new."""
        fresh = self._fresh(batch)
        rows = len(batch)
        if not fresh.all():
            batch = batch.take(fresh)
        if len(batch):
            batch = _sorted(batch)
            self._note(batch)
            if (int(batch.attempt[0]), int(batch.seq[0])) > self._newest:
                self._store(batch)
            else:
                self._late.append(batch)
        return Appended(len(batch), rows - len(batch))

    def expect(self, attempt: int, count: int) -> bool:
        """See ``Store``; whether that is news."""
        before = self._expected.get(attempt)
        self._expected[attempt] = count
        return before != count and attempt in self._seen

    def view(self) -> SeriesView:
        """The series as it is now."""
        self._sort_in()
        for name, column in self._columns.items():
            self._tallies[name].count(column)
        columns = {name: (column, column.rows) for name, column in self._columns.items()}
        counts = {name: (tally.points, tally.nonfinite) for name, tally in self._tallies.items()}
        folds: dict[int, FoldView] = {start: fold.view() for start, fold in self._folds.items()}
        ints = self._ints
        return SeriesView(
            ints["step"].rows, self._layout, ints["attempt"], ints["seq"], ints["step"], ints["epoch"], self._timestamp,
            columns, counts, tuple(self._cuts), folds, self._extent(), self._gaps(),
        )  # fmt: skip

    def memory(self) -> tuple[int, int, int]:
        """Bytes of the columns in memory, of the pyramid, and of columns in files; also while another thread takes a view."""
        columns = self.columns()
        late = sum(_batch_bytes(batch) for batch in self._late)
        return (
            sum(column.resident_bytes for column in columns) + late,
            sum(fold.memory_bytes for fold in list(self._folds.values())),
            sum(column.spilled_bytes for column in columns),
        )

    def columns(self) -> list[Chunks]:
        """All columns, for the one who spills."""
        return [*self._ints.values(), self._timestamp, *self._columns.values()]

    def _gaps(self) -> tuple[Gap, ...]:
        found = [
            Gap(attempt, first, stop - 1)
            for attempt, seen in sorted(self._seen.items())
            for first, stop in seen.gaps(self._expected.get(attempt, 0))
        ]
        return tuple(found[-MAX_GAPS:])

    def _fresh(self, batch: Batch) -> Bools:
        fresh = np.ones(len(batch), bool)
        if not len(batch):
            return fresh
        attempts = [int(batch.attempt[0])]
        if not (batch.attempt == batch.attempt[0]).all():
            attempts = np.unique(batch.attempt).tolist()
        for attempt in attempts:
            seen = self._seen.setdefault(attempt, IntervalSet())
            if len(attempts) == 1:
                return seen.add(batch.seq)
            mine = np.flatnonzero(batch.attempt == attempt)
            fresh[mine] = seen.add(batch.seq[mine])
        return fresh

    def _store(self, batch: Batch) -> None:
        """Rows that continue behind what is there."""
        start = self._ints["step"].rows
        self._extend_cuts(batch, start)
        self._ints["attempt"].append(batch.attempt)
        self._ints["seq"].append(batch.seq)
        self._ints["step"].append(batch.step)
        self._ints["epoch"].append(batch.epoch)
        self._timestamp.append(start, batch.timestamp, None)
        for name, column in batch.columns.items():
            known = self._columns.get(name)
            if known is None:
                known = self._columns[name] = FloatColumn()
                self._tallies[name] = _Tally()
            known.append(start, column.values, column.present)
        self._newest = (int(batch.attempt[-1]), int(batch.seq[-1]))
        if self._cuts[-1].stop - self._cuts[-1].start >= LEAST_CLOSED or len(self._cuts) - 1 > self._folded_cuts:
            self._fold()

    def _extend_cuts(self, batch: Batch, start: int) -> None:
        step, attempt = batch.step, batch.attempt
        breaks = np.flatnonzero((step[1:] < step[:-1]) | (attempt[1:] != attempt[:-1])) + 1
        edges = [0, *breaks.tolist(), len(step)]
        for first, stop in pairwise(edges):
            last = self._cuts[-1] if self._cuts else None
            mine = int(attempt[first])
            joins = first == 0 and last is not None and last.attempt == mine
            if joins and last is not None and self._ints["step"].at(last.stop - 1) <= int(step[0]):
                self._cuts[-1] = Cut(last.start, start + stop, mine)
            else:
                self._cuts.append(Cut(start + first, start + stop, mine))

    def _fold(self) -> None:
        """Take enough new rows into the pyramid; a stretch that has ended altogether."""
        for number in range(self._folded_cuts, len(self._cuts)):
            cut = self._cuts[number]
            closed = number < len(self._cuts) - 1
            fold = self._folds.get(cut.start)
            folded = fold.folded if fold else cut.start
            enough = cut.stop - folded >= LEAST_FOLD or (closed and cut.stop - cut.start >= LEAST_CLOSED)
            if enough and folded < cut.stop:
                fold = self._folds.setdefault(cut.start, Fold(cut.start))
                while fold.folded < cut.stop:
                    stop = min(cut.stop, (fold.folded // CHUNK_ROWS + 1) * CHUNK_ROWS)
                    columns = {
                        name: column.read(fold.folded, stop, column.rows)
                        for name, column in self._columns.items()
                        if column.rows > fold.folded
                    }
                    fold.fold(self._ints["step"].read(fold.folded, stop), columns)
        self._folded_cuts = len(self._cuts) - 1

    def _sort_in(self) -> None:
        """Put the late rows in their places."""
        if not self._late:
            return
        late = _sorted(concat(self._late))
        self._late = []
        rows = self._ints["step"].rows
        first = (int(late.attempt[0]), int(late.seq[0]))
        place = bisect_left(range(rows), first, key=self._identity)
        tail = self._batch(place, rows)
        self._cut_off(place)
        self._layout += 1
        self._store(_sorted(concat([tail, late])))

    def _identity(self, row: int) -> tuple[int, int]:
        return self._ints["attempt"].at(row), self._ints["seq"].at(row)

    def _batch(self, start: int, stop: int) -> Batch:
        attempt, seq, step, epoch = (self._ints[name].read(start, stop) for name in _INTS)
        timestamp = self._timestamp.read(start, stop, stop).values
        columns = {name: column.read(start, stop, column.rows) for name, column in self._columns.items()}
        return Batch(seq, attempt, step, epoch, timestamp, columns)

    def _cut_off(self, rows: int) -> None:
        """Go back to the first ``rows`` rows; views keep the columns that they have."""
        self._ints = {name: column.cut_off(rows) for name, column in self._ints.items()}
        self._timestamp = self._timestamp.cut_off(rows)
        self._columns = {name: column.cut_off(rows) for name, column in self._columns.items()}
        self._tallies = {name: _Tally() for name in self._columns}
        self._cuts = [Cut(cut.start, min(cut.stop, rows), cut.attempt) for cut in self._cuts if cut.start < rows]
        starts = {cut.start for cut in self._cuts}
        self._folds = {start: fold for start, fold in self._folds.items() if start in starts and fold.folded <= rows}
        self._folded_cuts = max(0, len(self._cuts) - 1)

    def _note(self, batch: Batch) -> None:
        """Keep the extent up to date."""
        low, high = int(batch.step.min()), int(batch.step.max())
        known = self._step_range
        self._step_range = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
        self._first_time = float(np.fmin(self._first_time, batch.timestamp[0]))

    def _extent(self) -> Extent:
        low, high = self._step_range or (0, 0)
        rows = self._ints["step"].rows
        last_time = float(self._timestamp.read(rows - 1, rows, rows).values[0]) if rows else np.nan
        return Extent(
            rows, low, high, self._first_time, last_time, tuple(sorted(self._seen)), tuple(self._columns),
            {name: tally.last for name, tally in self._tallies.items() if tally.last is not None},
            sum(seen.missing(self._expected.get(attempt, 0)) for attempt, seen in self._seen.items()),
        )  # fmt: skip


def _sorted(batch: Batch) -> Batch:
    """In (attempt, seq) order."""
    same = batch.attempt[1:] == batch.attempt[:-1]
    ahead = np.where(same, batch.seq[1:] > batch.seq[:-1], batch.attempt[1:] > batch.attempt[:-1])
    return batch if ahead.all() else batch.take(np.lexsort((batch.seq, batch.attempt)))


def _batch_bytes(batch: Batch) -> int:
    arrays: list[NDArray[Any]] = [batch.seq, batch.attempt, batch.step, batch.epoch, batch.timestamp]
    arrays += [
        part for column in batch.columns.values() for part in (column.values, column.present) if part is not None
    ]
    return sum(array.nbytes for array in arrays)
