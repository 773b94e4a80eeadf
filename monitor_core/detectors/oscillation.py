"""The article's loss oscillation (section 4.2): std / mean over a sliding window, as a table function and as a state machine.

Wherever rounding could decide about the threshold, both use one exact sum per window (``math.fsum``), so they give the
same flags; pandas' rolling std carries rounding errors on from values that have left its window, and agrees wherever
that does not matter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from monitor_core.detectors.base import Finding
from monitor_core.detectors.spans import Span, Spans

if TYPE_CHECKING:
    import pandas as pd

WINDOW_ROWS = 100  # rows; the article
THRESHOLD = 0.3  # std / mean, no unit; the article
CONSECUTIVE = 5  # windows; contract F: the article's trigger "more than five in a row"
_CHUNK_WINDOWS = 10_000  # bounds the memory of the vectorised form to 8 MB
_ROUNDING = 4e-16  # relative error of one addition, doubled
_MARGIN = 1e7  # the variance must be this much larger than what rounding may have added: leaves a ratio right to 1e-7
_DOUBT = 1e-6  # relative distance from the threshold within which the fast sum is not trusted


def ratio_of(window: Iterable[float]) -> float:
    """Sample standard deviation / mean; NaN unless every value is finite and the sums are."""
    values = list(window)
    try:
        mean = math.fsum(values) / len(values)
        variance = math.fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1)
    except (OverflowError, ValueError):  # sums beyond the largest float; infinities of both signs
        return math.nan
    if not math.isfinite(mean):
        return math.nan
    if mean == 0.0:
        return math.inf if variance > 0 else math.nan
    return math.sqrt(variance) / mean


def detect_loss_oscillation(
    df: pd.DataFrame, window: int = WINDOW_ROWS, threshold: float = THRESHOLD
) -> pd.Series[bool]:
    """True where std / mean of the last ``window`` losses (sample std, NaN and infinities make it False) is above ``threshold``.

    ``df``: a table with a ``loss`` column, as ``load_monitor_logs`` gives it, one row per step; rows of evaluations (no loss, but
    ``eval_...``) are False and in no window. Returns a boolean Series with its index.
    Source: the article, section 4.2.
    """
    import pandas as pd

    if window < 2:
        raise ValueError(f"window: got {window}, expected at least 2 rows to take a standard deviation of")
    losses = pd.to_numeric(df["loss"], errors="coerce").to_numpy(np.float64)
    evaluations = np.isnan(losses) & df.filter(regex="^eval_").notna().any(axis=1).to_numpy(bool)
    flags = np.zeros(len(losses), bool)
    flags[~evaluations] = _flags(losses[~evaluations], window, threshold)
    return pd.Series(flags, index=df.index, dtype=bool)


def _flags(losses: NDArray[np.float64], window: int, threshold: float) -> NDArray[np.bool_]:
    flags = np.zeros(len(losses), bool)
    if len(losses) < window:
        return flags
    windows = np.lib.stride_tricks.sliding_window_view(losses, window)
    for start in range(0, len(windows), _CHUNK_WINDOWS):
        part = windows[start : start + _CHUNK_WINDOWS]
        with np.errstate(all="ignore"):
            mean = part.mean(axis=1)
            ratio = part.std(axis=1, ddof=1) / mean
            scale = np.abs(part).max(axis=1)
        whole = np.isfinite(part).all(axis=1)
        flag = whole & (ratio > threshold)
        near = np.abs(ratio - threshold) <= _DOUBT * max(1.0, abs(threshold))
        unsure = whole & (near | ~np.isfinite(ratio) | (np.abs(mean) <= _DOUBT * scale))
        for row in np.flatnonzero(unsure):
            flag[row] = ratio_of(part[row].tolist()) > threshold
        flags[start + window - 1 : start + window - 1 + len(part)] = flag
    return flags


class _RunningSums:
    """Sum and sum of squares of a window, kept up as it moves: a tenth of the cost of adding it up each time.

    Every step adds a rounding error of the largest value seen; ``ratio`` is NaN where that could matter.
    """

    def __init__(self) -> None:
        self.age = 10**9
        """Steps since the sums were made afresh; very old before the first time."""
        self._sum = self._squares = self._largest = 0.0

    def restart(self, values: Iterable[float]) -> None:
        """Add up a window afresh."""
        window = list(values)
        self._sum, self._squares = sum(window), sum([value * value for value in window])
        self._largest = max(map(abs, window))
        self.age = 0

    def add(self, value: float, left: float) -> None:
        """``value`` enters the window, ``left`` leaves it. NaN spoils the sums until the next restart."""
        self._sum += value - left
        self._squares += value * value - left * left
        self._largest = max(self._largest, abs(value))
        self.age += 1 if value == value else 10**9

    def ratio(self, count: int) -> float:
        """Sample standard deviation / mean, or NaN where the exact sums must decide."""
        mean = self._sum / count
        variance = (self._squares - self._sum * mean) / (count - 1)
        error = _ROUNDING * self._largest * self._largest * count
        if not variance > error * _MARGIN or not abs(mean) > _DOUBT * self._largest:
            return math.nan
        return math.sqrt(variance) / mean


class LossOscillation:
    """The same rule, one record at a time.

    A finding begins at the first of ``CONSECUTIVE`` flagged windows in a row; flagged windows less than one window length apart
    are one finding, as they share data. Rows count in the order they come, whatever their step, as in the article.
    """

    name = "article.loss_oscillation"
    inputs = ("loss",)

    def __init__(self, window: int = WINDOW_ROWS, threshold: float = THRESHOLD) -> None:
        self.window = window
        self.threshold = threshold
        self.flag = False
        """The rule's answer for the newest record."""
        self._values: deque[float] = deque(maxlen=window)
        self._finite = 0
        self._row = -1
        self._sums = _RunningSums()
        self._streak: list[tuple[int, int, float]] = []
        self._spans = Spans(window)

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """See ``Detector.update``."""
        loss = values[0]
        self._row += 1
        value = math.nan if loss is None or not math.isfinite(loss) else loss
        self._finite = 0 if math.isnan(value) else self._finite + 1
        self._sums.add(value, self._values[0] if len(self._values) == self.window else 0.0)
        self._values.append(value)
        ratio = self._ratio() if self._finite >= self.window else math.nan
        self.flag = ratio > self.threshold
        if not self.flag:
            self._streak.clear()
            return ()
        if len(self._streak) == CONSECUTIVE:
            self._spans.add(self._row, step, ratio)
            return ()
        self._streak.append((self._row, step, ratio))
        if len(self._streak) < CONSECUTIVE:
            return ()
        before = len(self._spans.items)
        for item in self._streak:
            self._spans.add(*item)
        return (self._finding(self._spans.items[-1]),) if len(self._spans.items) > before else ()

    def _ratio(self) -> float:
        """The window's ratio: by running sums where they cannot be wrong about the threshold, else exactly."""
        sums = self._sums
        if sums.age >= self.window:
            sums.restart(self._values)
        ratio = sums.ratio(self.window)
        unsure = not abs(ratio - self.threshold) > _DOUBT * max(1.0, abs(self.threshold))
        return ratio_of(self._values) if unsure else ratio

    def findings(self) -> tuple[Finding, ...]:
        """See ``Detector.findings``."""
        return tuple(self._finding(span) for span in self._spans.items)

    def _finding(self, span: Span) -> Finding:
        return Finding(
            kind="loss_oscillation",
            detector=self.name,
            metric="loss",
            severity="warning",
            first_step=span.first_step,
            last_step=span.last_step,
            ongoing=self._spans.ongoing(span, self._row),
            evidence={"ratio": span.peak, "threshold": self.threshold, "window": self.window, "windows": span.rows},
            causes=("lr_too_high", "loss_falling_fast", "bad_batches"),
            advice=("lower_lr",),
        )
