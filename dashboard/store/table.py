"""The store that the dashboard uses: growing columns per run and rank, snapshots for readers, Arrow on the way out."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dashboard.query import columns_of, ordered, rows_of, window_of
from dashboard.store.base import Appended, ColumnRows, Extent, Floats, Gap, Ints, Rows, SeriesKey, Window, WindowQuery
from dashboard.store.series import Series, SeriesView
from monitor_core.batch import NO_EPOCH, Batch


class TableSnapshot:
    """An immutable view; see ``dashboard.store.base.Snapshot``."""

    def __init__(self, version: int, views: Mapping[SeriesKey, SeriesView]) -> None:
        self.version = version
        self._views = views

    def series(self) -> tuple[SeriesKey, ...]:
        """See ``Snapshot``."""
        return tuple(sorted(self._views))

    def extent(self, key: SeriesKey) -> Extent:
        """See ``Snapshot``."""
        return self._views[key].extent

    def gaps(self, key: SeriesKey) -> tuple[Gap, ...]:
        """See ``Snapshot``."""
        return self._views[key].gaps

    def window(self, query: WindowQuery) -> Window:
        """See ``Snapshot``."""
        return window_of(self._views[query.series], query)

    def column(self, key: SeriesKey, metric: str) -> tuple[Ints, Ints, Floats]:
        """See ``Snapshot``."""
        return ordered(self._views[key], metric)

    def rows(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> Rows:
        """See ``Snapshot``."""
        return rows_of(self._views[key], start, stop, metrics)

    def columns(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> ColumnRows:
        """See ``Snapshot``."""
        return columns_of(self._views[key], start, stop, metrics)

    def table(self, key: SeriesKey) -> pa.Table:
        """The series as an Arrow table in order of arrival: absent is null, NaN is NaN. Columns share the store's memory."""
        view = self._views[key]
        columns: dict[str, Any] = {
            "attempt": pa.array(view.attempt),
            "seq": pa.array(view.seq),
            "step": pa.array(view.step),
            "epoch": pa.array(view.epoch, mask=view.epoch == NO_EPOCH),
            "timestamp": pa.array(view.timestamp),
        }
        for name, values in view.values.items():
            known = pa.array(values, mask=~view.present[name], from_pandas=False)
            missing = pa.nulls(view.rows - len(values), pa.float64())
            columns[name] = pa.chunked_array([known, missing])
        return pa.table(columns)


class TableStore:
    """See ``dashboard.store.base.Store``. One thread appends; snapshots are taken by any."""

    def __init__(self) -> None:
        self._series: dict[SeriesKey, Series] = {}
        self._views: Mapping[SeriesKey, SeriesView] = {}
        self._version = 0
        self._lock = threading.Lock()

    def append(self, key: SeriesKey, batch: Batch) -> Appended:
        """See ``Store``."""
        series = self._series.setdefault(key, Series())
        found = series.append(batch)
        if found.accepted:
            self._publish({**self._views, key: series.view()})
        return found

    def expect(self, key: SeriesKey, attempt: int, count: int) -> None:
        """See ``Store``."""
        series = self._series.get(key)
        if series is not None and series.expect(attempt, count):
            self._publish({**self._views, key: series.view()})

    def drop(self, run: str) -> None:
        """See ``Store``."""
        gone = [key for key in self._series if key.run == run]
        for key in gone:
            del self._series[key]
        if gone:
            self._publish({key: view for key, view in self._views.items() if key.run != run})

    def snapshot(self) -> TableSnapshot:
        """See ``Store``."""
        with self._lock:
            return TableSnapshot(self._version, self._views)

    def _publish(self, views: Mapping[SeriesKey, SeriesView]) -> None:
        with self._lock:
            self._views = views
            self._version += 1
