"""Which sequence numbers have been seen, as few intervals."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


class IntervalSet:
    """A set of whole numbers from 0 on, kept as sorted, disjoint half-open intervals.

    A writer counts without gaps, so there is usually one interval and a batch only moves its end.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Put ``numbers`` in; which of them (the first of equal ones) were not there, shape ``(n,)``."""
        fresh = np.zeros(len(numbers), bool)
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        edges = [0, *breaks.tolist(), len(numbers)]
        for first, last in pairwise(edges):
            if first < last:
                self._add_range(int(numbers[first]), fresh[first:last])
        return fresh

    def missing(self, count: int = 0) -> int:
        """How many numbers below the highest one, and below ``count``, are not there."""
        highest = max(count, self._stops[-1] if self._stops else 0)
        return highest - sum(stop - start for start, stop in zip(self._starts, self._stops, strict=True))

    def gaps(self, count: int = 0) -> list[tuple[int, int]]:
        """Those numbers as half-open intervals, in order."""
        edges = [0, *(edge for pair in zip(self._starts, self._stops, strict=True) for edge in pair)]
        if count > edges[-1]:
            edges.append(count)
        return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False) if low < high]

    def _add_range(self, start: int, fresh: NDArray[np.bool_]) -> None:
        """Numbers from ``start`` on, as many as ``fresh`` has places."""
        stop = start + len(fresh)
        fresh[:] = True
        left = bisect_right(self._starts, start) - 1
        if left < 0 or self._stops[left] < start:
            left += 1
        right = left
        low, high = start, stop
        while right < len(self._starts) and self._starts[right] <= stop:
            known_start, known_stop = self._starts[right], self._stops[right]
            fresh[max(0, known_start - start) : max(0, known_stop - start)] = False
            low, high = min(low, known_start), max(high, known_stop)
            right += 1
        self._starts[left:right] = [low]
        self._stops[left:right] = [high]
