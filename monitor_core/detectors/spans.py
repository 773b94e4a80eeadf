"""Flagged rows, merged into the stretches that a person would circle on the curve."""

from __future__ import annotations

from dataclasses import dataclass


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
        last.last_row, last.last_step = row, step
        last.rows += 1
        last.peak = max(last.peak, measure)
        return last

    def ongoing(self, span: Span, row: int) -> bool:
        """Whether ``span`` may still grow, seen from the newest row."""
        return row - span.last_row <= self.gap_rows
