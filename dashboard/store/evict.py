"""Who has to leave memory when a store is over its budget."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dashboard.store.base import Cache, SeriesKey
from dashboard.store.series import Series

_log = logging.getLogger("msmon.store")
_LOW_WATER = 0.9  # of the budget: so that not every append spills
_RETRY = 1 / 32  # of the budget: growth after a failure before it is tried again, for a full disk may have room by then


class Evictor:
    """Keeps count of memory and sends the coldest full chunks to the cache. Used by the appending thread, ``asked`` by any."""

    def __init__(self, budget_bytes: int, cache: Cache) -> None:
        self.state = ""
        """Why the budget cannot be held; empty when it is."""
        self._budget_bytes = budget_bytes
        self._cache = cache
        self._resident: dict[SeriesKey, int] = {}
        self._total_bytes = 0
        self._used: dict[SeriesKey, int] = {}
        self._clock = 0
        self._retry_above_bytes = 0.0
        self._told: set[str] = set()

    def asked(self, key: SeriesKey) -> None:
        """Somebody used the series."""
        self._clock += 1
        self._used[key] = self._clock

    def forget(self, key: SeriesKey) -> None:
        """The series is gone."""
        self._total_bytes -= self._resident.pop(key, 0)
        self._used.pop(key, None)

    def appended(self, key: SeriesKey, series: Mapping[SeriesKey, Series]) -> None:
        """The series has grown: see to the budget."""
        self.asked(key)
        self._measure(key, series[key])
        if self._total_bytes <= self._budget_bytes:
            self.state, self._retry_above_bytes = "", 0.0
            return
        if self._total_bytes <= self._retry_above_bytes:
            return
        try:
            for cold in sorted(series, key=lambda one: self._used.get(one, 0)):
                self._spill(series[cold])
                self._measure(cold, series[cold])
                if self._total_bytes <= _LOW_WATER * self._budget_bytes:
                    break
        except OSError as error:
            self._failed("the cache directory cannot be written", f": {error}")
            return
        if self._total_bytes > self._budget_bytes:  # newest chunks and the pyramid do not go to files
            self._failed("what is left are newest rows and the pyramid")
        else:
            self.state, self._retry_above_bytes = "", 0.0

    def _spill(self, series: Series) -> None:
        found = [(column, number, array) for column in series.columns() for number, array in column.spillable()]
        if found:
            mapped = self._cache.keep([array for _, _, array in found])
            for (column, number, old), new in zip(found, mapped, strict=True):
                column.replace(number, old, new)

    def _measure(self, key: SeriesKey, series: Series) -> None:
        columns, pyramid, _ = series.memory()
        self._total_bytes += columns + pyramid - self._resident.get(key, 0)
        self._resident[key] = columns + pyramid

    def _failed(self, reason: str, detail: str = "") -> None:
        self.state = f"rows stay in memory above the budget: {reason}{detail}"
        if reason not in self._told:
            self._told.add(reason)
            _log.warning("%s", self.state)
        self._retry_above_bytes = self._total_bytes + _RETRY * self._budget_bytes
