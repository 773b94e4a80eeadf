"""The article's vanishing gradient (section 4.2): grad_norm below an absolute threshold in more than 100 steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monitor_core.detectors.base import Finding
from monitor_core.detectors.spans import Span, Spans

if TYPE_CHECKING:
    import pandas as pd

THRESHOLD = 1e-6  # grad_norm, no unit; the article
MORE_THAN_STEPS = 100  # steps in all before it is stated; the article
_GAP_ROWS = 20  # rows; flagged steps this near are one stretch on the curve


def detect_gradient_vanish(df: pd.DataFrame, threshold: float = THRESHOLD) -> pd.Series[bool]:
    """True where ``grad_norm`` is below ``threshold``; a step without a gradient norm, or with NaN, is False.

    ``df``: a table with a ``grad_norm`` column, one row per step. Source: the article, section 4.2.
    """
    import pandas as pd

    return (pd.to_numeric(df["grad_norm"], errors="coerce") < threshold).astype(bool)


class GradientVanish:
    """The same rule, one record at a time; stated once more than ``MORE_THAN_STEPS`` steps are flagged in all."""

    name = "article.gradient_vanish"
    inputs = ("grad_norm",)

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self.flag = False
        """The rule's answer for the newest record."""
        self._row = -1
        self._spans = Spans(_GAP_ROWS)

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """See ``Detector.update``."""
        norm = values[0]
        self._row += 1
        self.flag = norm is not None and norm < self.threshold
        if not self.flag or norm is None:
            return ()
        # Spans keep a maximum; of a vanishing gradient the smallest norm is the extreme.
        span = self._spans.add(self._row, step, -norm)
        if self._spans.total == MORE_THAN_STEPS + 1:
            return self.findings()
        return (self._finding(span),) if self._spans.total > MORE_THAN_STEPS and span.rows == 1 else ()

    def findings(self) -> tuple[Finding, ...]:
        """See ``Detector.findings``."""
        stated = self._spans.total > MORE_THAN_STEPS
        return tuple(self._finding(span) for span in self._spans.items) if stated else ()

    def _finding(self, span: Span) -> Finding:
        return Finding(
            kind="gradient_vanish",
            detector=self.name,
            metric="grad_norm",
            severity="warning",
            first_step=span.first_step,
            last_step=span.last_step,
            ongoing=self._spans.ongoing(span, self._row),
            evidence={"smallest": math.fabs(span.peak), "threshold": self.threshold, "steps": span.rows},
            causes=("saturated_activations", "bad_initialisation", "frozen_layers"),
            advice=("change_activation", "change_initialisation", "gradient_checkpointing"),
        )
