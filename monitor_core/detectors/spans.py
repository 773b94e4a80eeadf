"""Flagged rows, merged into the stretches that a person would circle on the curve."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MOST = 10_000  # spans: 3 MB; more are on no screen, and a training must not grow with its length


@dataclass(slots=True)
class Span:
    """A stretch of flagged rows; small gaps inside it are allowed."""

    first_row: int
    first_step: int
    last_row: int
    last_step: int
    rows: int
    """Flagged rows in it."""
    peak: float
    """The most extreme measure among them."""


class Spans:
    """Collects spans from rows that come in order."""

    def __init__(self, gap_rows: int) -> None:
        """``gap_rows``: flagged rows at most this far apart belong together."""
        self.gap_rows = gap_rows
        self.items: list[Span] = []
        self.total = 0
        """Flagged rows in all."""

    def add(self, row: int, step: int, measure: float) -> Span:
        """A flagged row; returns the span it went into (``rows`` is 1 for a new one)."""
        self.total += 1
        last = self.items[-1] if self.items else None
        if last is None or row - last.last_row > self.gap_rows:
            last = Span(row, step, row, step, 0, measure)
            self.items.append(last)
            if len(self.items) > _MOST:
                self._widen()
                last = self.items[-1]
        last.last_row, last.last_step = row, step
        last.rows += 1
        last.peak = max(last.peak, measure)
        return last

    def take(self, other: Spans) -> None:
        """All spans of ``other``, which come before any row of this one."""
        self.items.extend(replace(span) for span in other.items)
        self.total += other.total

    def _widen(self) -> None:
        """Neighbours become one, until half of the spans are left at most; later gaps may be as wide."""
        while len(self.items) > _MOST // 2:
            self.gap_rows *= 2
            merged = self.items[:1]
            for span in self.items[1:]:
                last = merged[-1]
                if span.first_row - last.last_row > self.gap_rows:
                    merged.append(span)
                else:
                    last.last_row, last.last_step = span.last_row, span.last_step
                    last.rows += span.rows
                    last.peak = max(last.peak, span.peak)
            self.items = merged

    def ongoing(self, span: Span, row: int) -> bool:
        """Whether ``span`` may still grow, seen from the newest row."""
        return row - span.last_row <= self.gap_rows
