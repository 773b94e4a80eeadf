"""Arrays that grow at the end while readers hold older views of them.

Memory is doubled rarely and never written twice: a view of the first n rows stays valid and constant when row n + 1 comes, also across a
doubling, because the old block is left to its readers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_ROWS = 1024  # rows; most runs outgrow a kilobyte-sized block at once


def _grown(old: NDArray[np.generic], need: int) -> NDArray[np.generic]:
    new = np.empty(max(_FIRST_ROWS, 2 * len(old), need), old.dtype)
    new[: len(old)] = old
    return new


class GrowingInts:
    """Whole numbers, one per row."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.int64)
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, values: NDArray[np.int64]) -> None:
        """Behind the last row."""
        stop = self._rows + len(values)
        if stop > len(self._block):
            self._block = _grown(self._block, stop)  # type: ignore[assignment]
        self._block[self._rows : stop] = values
        self._rows = stop

    def view(self) -> NDArray[np.int64]:
        """Read-only, shape ``(rows,)``."""
        found = self._block[: self._rows]
        found.flags.writeable = False
        return found


class GrowingColumn:
    """One metric's values with a mask of the rows that have it; may begin later than the series."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.float64)
        self._present = np.empty(0, np.bool_)
        self._rows = 0
        self._points = self._finite = 0

    def append(self, start: int, values: NDArray[np.float64], present: NDArray[np.bool_] | None) -> None:
        """Rows from ``start`` on; rows since the last append are absent."""
        stop = start + len(values)
        if stop > len(self._values):
            self._values = _grown(self._values, stop)  # type: ignore[assignment]
            self._present = _grown(self._present, stop)  # type: ignore[assignment]
        self._values[self._rows : start] = np.nan
        self._present[self._rows : start] = False
        self._values[start:stop] = values
        self._present[start:stop] = True if present is None else present
        self._rows = stop
        self._points += len(values) if present is None else int(np.count_nonzero(present))
        finite = np.isfinite(values)
        self._finite += int(np.count_nonzero(finite if present is None else finite & present))

    def counts(self) -> tuple[int, int]:
        """``(values, of them not finite)`` in all rows."""
        return self._points, self._points - self._finite

    def values(self) -> NDArray[np.float64]:
        """Read-only, shape ``(rows so far,)``."""
        found = self._values[: self._rows]
        found.flags.writeable = False
        return found

    def present(self) -> NDArray[np.bool_]:
        """Read-only, shape ``(rows so far,)``."""
        found = self._present[: self._rows]
        found.flags.writeable = False
        return found
