"""The store that the dashboard uses: chunked columns per run and rank, snapshots for readers, Arrow on the way out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dashboard.query import columns_of, ordered, rows_of, window_of
from dashboard.store.base import (
    Appended,
    Cache,
    ColumnRows,
    Extent,
    Floats,
    Gap,
    Ints,
    Memory,
    Rows,
    SeriesKey,
    Window,
    WindowQuery,
)
from dashboard.store.chunks import FloatColumn
from dashboard.store.evict import Evictor
from dashboard.store.series import Series
from dashboard.store.view import SeriesView
from monitor_core.batch import NO_EPOCH, Batch


class TableSnapshot:
    """An immutable view; see ``dashboard.store.base.Snapshot``."""

    def __init__(
        self, version: int, views: Mapping[SeriesKey, SeriesView], keys: tuple[SeriesKey, ...],
        asked: Callable[[SeriesKey], None],
    ) -> None:  # fmt: skip
        self.version = version
        self._views = views
        self._asked = asked
        self._keys = keys

    def series(self) -> tuple[SeriesKey, ...]:
        """See ``Snapshot``."""
        return self._keys

    def extent(self, key: SeriesKey) -> Extent:
        """See ``Snapshot``."""
        return self._views[key].extent

    def gaps(self, key: SeriesKey) -> tuple[Gap, ...]:
        """See ``Snapshot``."""
        return self._views[key].gaps

    def window(self, query: WindowQuery) -> Window:
        """See ``Snapshot``."""
        return window_of(self._view(query.series), query)

    def column(self, key: SeriesKey, metric: str) -> tuple[Ints, Ints, Floats]:
        """See ``Snapshot``."""
        return ordered(self._view(key), metric)

    def rows(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> Rows:
        """See ``Snapshot``."""
        return rows_of(self._view(key), start, stop, metrics)

    def columns(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> ColumnRows:
        """See ``Snapshot``."""
        return columns_of(self._view(key), start, stop, metrics)

    def table(self, key: SeriesKey) -> pa.Table:
        """The series as an Arrow table in (attempt, seq) order: absent is null, NaN is NaN. Values share the store's memory."""
        view = self._view(key)
        epoch = view.epoch.read(0, view.rows)
        columns: dict[str, Any] = {
            "attempt": pa.array(view.attempt.read(0, view.rows)),
            "seq": pa.array(view.seq.read(0, view.rows)),
            "step": pa.array(view.step.read(0, view.rows)),
            "epoch": pa.array(epoch, mask=epoch == NO_EPOCH),
            "timestamp": _chunked(view.timestamp, view.rows, view.rows),
        }
        columns |= {name: _chunked(column, view.rows, have) for name, (column, have) in view.metrics.items()}
        return pa.table(columns)

    def _view(self, key: SeriesKey) -> SeriesView:
        view = self._views[key]
        self._asked(key)
        return view


def _chunked(column: FloatColumn, rows: int, have: int) -> pa.ChunkedArray:
    parts = [
        pa.array(part.values, mask=None if part.present is None else ~part.present, from_pandas=False)
        for part in column.parts(rows, have)
    ]
    return pa.chunked_array(parts, pa.float64())


class TableStore:
    """See ``dashboard.store.base.Store``. One thread appends; snapshots are taken by any.

    Above ``memory_budget_bytes`` full chunks of the series that were longest neither asked for nor appended to go to ``cache``.
    """

    def __init__(self, memory_budget_bytes: int | None = None, cache: Cache | None = None) -> None:
        self._series: dict[SeriesKey, Series] = {}
        self._views: dict[SeriesKey, SeriesView] = {}
        self._changed: dict[SeriesKey, None] = {}
        self._keys: tuple[SeriesKey, ...] = ()
        self._snapshot: TableSnapshot | None = None
        self._version = 0
        self._lock = threading.Lock()
        self._evictor = None if memory_budget_bytes is None or cache is None else Evictor(memory_budget_bytes, cache)

    def append(self, key: SeriesKey, batch: Batch) -> Appended:
        """See ``Store``."""
        with self._lock:
            series = self._series.get(key)
            if series is None:
                series = self._series[key] = Series()
            found = series.append(batch)
            self._note(key, changed=found.accepted > 0)
        if self._evictor is not None and found.accepted:
            self._evictor.appended(key, self._series)
        return found

    def expect(self, key: SeriesKey, attempt: int, count: int) -> None:
        """See ``Store``."""
        with self._lock:
            series = self._series.get(key)
            self._note(key, changed=series is not None and series.expect(attempt, count))

    def drop(self, run: str) -> None:
        """See ``Store``."""
        with self._lock:
            gone = [key for key in self._series if key.run == run]
            for key in gone:
                del self._series[key]
                self._changed.pop(key, None)
                self._views.pop(key, None)
                if self._evictor is not None:
                    self._evictor.forget(key)
            if gone:
                self._keys = ()
                self._snapshot = None
                self._version += 1

    def snapshot(self) -> TableSnapshot:
        """See ``Store``. Views are made only here, and only of the series that have changed since the last time."""
        with self._lock:
            if self._snapshot is None:
                for key in self._changed:
                    self._views[key] = self._series[key].view()
                self._changed.clear()
                if len(self._keys) != len(self._views):
                    self._keys = tuple(sorted(self._views))
                asked = self._evictor.asked if self._evictor is not None else _nobody_counts
                self._snapshot = TableSnapshot(self._version, dict(self._views), self._keys, asked)
            return self._snapshot

    def memory_bytes(self) -> Memory:
        """See ``Store``."""
        with self._lock:
            found = [series.memory() for series in self._series.values()]
        return Memory(*(sum(part) for part in zip(*found, strict=True))) if found else Memory(0, 0, 0)

    @property
    def spill_state(self) -> str:
        """See ``Store``."""
        return self._evictor.state if self._evictor is not None else ""

    def _note(self, key: SeriesKey, *, changed: bool) -> None:
        if changed:
            self._changed[key] = None
            self._snapshot = None
            self._version += 1


def _nobody_counts(key: SeriesKey) -> None:
    """Without a budget nobody needs to know which series are asked for."""
