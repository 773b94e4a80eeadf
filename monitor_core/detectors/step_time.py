"""The article's step-time spike (section 4.2): more than 10 steps above twice the median of all steps so far."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from monitor_core.detectors.base import Finding
from monitor_core.detectors.spans import Span, Spans
from monitor_core.limits import DETECTOR_ROWS

if TYPE_CHECKING:
    import pandas as pd

THRESHOLD = 2.0  # times the median, no unit; the article
MORE_THAN_STEPS = 10  # steps in all before it is stated; the article
_GAP_ROWS = 20  # rows; slow steps this near are one stretch on the curve
_MOST_SPANS = 200  # a run that is slow at every checkpoint gets wider stretches, not thousands of marks
_PENDING_VALUES = 2048  # values merged at once into the sorted history: keeps a merge below 10 ns per step at 1 M steps
_KEPT_ROWS = DETECTOR_ROWS  # rows for which the rule is exact
_CHECK_EVERY_ROWS = 64  # the median moves slowly; a fresh outlier is checked at once


def detect_step_time_spike(df: pd.DataFrame, threshold: float = THRESHOLD) -> pd.Series[bool]:
    """True where ``step_time`` is above ``threshold`` times the median of the whole table; NaN is False and not in the median.

    ``df``: a table with a ``step_time`` column (seconds), one row per step. Source: the article, section 4.2.
    """
    import pandas as pd

    times = pd.to_numeric(df["step_time"], errors="coerce")
    known = times.dropna().to_numpy(np.float64)
    with np.errstate(all="ignore"):  # infinities and sums beyond the largest float are answers here, not accidents
        median = float(np.median(known)) if len(known) else math.nan
    return (times > median * threshold).astype(bool)


class History:
    """The values seen, with a running median: 16 bytes per value, about a microsecond to add one.

    Exact for ``most`` values. Beyond, every second one goes and every second of the later ones is taken, and so on: the
    median is one of a sample then, at most about 1 in 500 off in rank.
    """

    def __init__(self, most: int = _KEPT_ROWS) -> None:
        self._most = most
        self._stride = 1
        """Values seen for one that is kept."""
        self._seen = 0
        self._sorted: NDArray[np.float64] = np.empty(0)
        self._pending: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted) + len(self._pending)

    def add(self, value: float) -> None:
        """``value`` must not be NaN."""
        self._seen += 1
        if self._seen % self._stride:
            return
        insort(self._pending, value)
        if len(self._pending) >= _PENDING_VALUES:
            # A stable sort of two sorted runs is one merge.
            self._sorted = np.sort(np.concatenate([self._sorted, np.array(self._pending)]), kind="stable")
            self._pending = []
        if len(self) > self._most:
            self._sorted = np.sort(np.concatenate([self._sorted, np.array(self._pending)]), kind="stable")[1::2].copy()
            self._pending = []
            self._stride *= 2

    def median(self) -> float:
        """As numpy and pandas define it; NaN when empty."""
        count = len(self)
        if not count:
            return math.nan
        middle = count // 2
        upper = self._at(middle)
        return upper if count % 2 else (self._at(middle - 1) + upper) / 2

    def above(self, bound: float) -> int:
        """How many values seen are above ``bound``; 0 when it is NaN."""
        if math.isnan(bound):
            return 0
        pending = len(self._pending) - bisect_right(self._pending, bound)
        return self._stride * (len(self._sorted) - int(self._sorted.searchsorted(bound, "right")) + pending)

    def _at(self, place: int) -> float:
        """The value at ``place`` of the merged order: the number of pending values before it is found by bisection."""
        low, high = max(0, place - len(self._sorted)), min(place, len(self._pending))
        while low < high:
            taken = (low + high) // 2
            if self._pending[taken] < self._sorted[place - taken - 1]:
                low = taken + 1
            else:
                high = taken
        rest = place - low
        candidates = []
        if low < len(self._pending):
            candidates.append(self._pending[low])
        if rest < len(self._sorted):
            candidates.append(float(self._sorted[rest]))
        return min(candidates)


class StepTimeSpike:
    """The same rule, one record at a time. Which steps are slow is decided anew as the median of the run moves.

    A training must not grow with its length: beyond ``kept_rows`` rows the older half is decided for good.
    """

    name = "article.step_time_spike"
    inputs = ("step_time",)

    def __init__(self, threshold: float = THRESHOLD, kept_rows: int = _KEPT_ROWS) -> None:
        self.threshold = threshold
        self._kept_rows = kept_rows
        self._history = History(kept_rows)
        self._decided = Spans(_GAP_ROWS)
        """Slow stretches among the rows before ``_first_row``."""
        self._first_row = 0
        self._times = array("d")
        self._steps = array("q")
        self._bound = math.inf
        self._open = False
        """Whether the rule's count has been exceeded, at a check."""
        self._slow_row = 0
        self._spans: tuple[int, Spans] = (0, Spans(_GAP_ROWS))

    @property
    def flag(self) -> bool:
        """The rule's answer for the newest record."""
        return bool(self._times) and self._times[-1] > self._history.median() * self.threshold

    def flags(self) -> NDArray[np.bool_]:
        """The rule's answer for the records that are kept, shape ``(n,)``; those are all as long as they are few."""
        return np.array(self._times) > self._history.median() * self.threshold

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """See ``Detector.update``."""
        seconds = math.nan if values[0] is None else values[0]
        if len(self._times) >= self._kept_rows:
            self._decide(self._kept_rows // 2)
        self._times.append(seconds)
        self._steps.append(step)
        if not math.isnan(seconds):
            self._history.add(seconds)
        if not (seconds > self._bound or len(self._times) % _CHECK_EVERY_ROWS == 0):
            return ()
        self._bound = self._history.median() * self.threshold
        row = self._rows() - 1
        if not self._open:
            self._open = self._history.above(self._bound) > MORE_THAN_STEPS
            self._slow_row = row
            return self.findings() if self._open else ()
        if seconds <= self._bound:
            return ()
        begins = row - self._slow_row > self._gap_rows()
        self._slow_row = row
        return (self._finding(Span(row, step, row, step, 1, seconds)),) if begins else ()

    def findings(self) -> tuple[Finding, ...]:
        """See ``Detector.findings``."""
        if self._history.above(self._history.median() * self.threshold) <= MORE_THAN_STEPS:
            return ()
        return tuple(self._finding(span) for span in self._clusters().items)

    def _gap_rows(self) -> int:
        return max(_GAP_ROWS, self._rows() // _MOST_SPANS)

    def _rows(self) -> int:
        return self._first_row + len(self._times)

    def _decide(self, count: int) -> None:
        self._decided = self._marked(self.flags()[:count])
        del self._times[:count], self._steps[:count]
        self._first_row += count

    def _clusters(self) -> Spans:
        if self._spans[0] != self._rows():
            self._spans = (self._rows(), self._marked(self.flags()))
        return self._spans[1]

    def _marked(self, flags: NDArray[np.bool_]) -> Spans:
        """The slow stretches of what is decided and of the kept rows with ``flags``, from the first kept one on."""
        spans = Spans(self._gap_rows())
        spans.take(self._decided)
        for place in np.flatnonzero(flags).tolist():
            spans.add(self._first_row + place, self._steps[place], self._times[place])
        return spans

    def _finding(self, span: Span) -> Finding:
        median = self._history.median()
        return Finding(
            kind="step_time_spike",
            detector=self.name,
            metric="step_time",
            severity="warning",
            first_step=span.first_step,
            last_step=span.last_step,
            ongoing=self._clusters().ongoing(span, self._rows() - 1),
            evidence={
                "slowest_s": span.peak,
                "median_s": median,
                "threshold": self.threshold,
                "steps": span.rows,
                "steps_in_all": self._history.above(median * self.threshold),
            },
            causes=("data_loader", "memory_fragmentation", "other_load"),
            advice=("check_prefetch", "check_memory"),
        )
