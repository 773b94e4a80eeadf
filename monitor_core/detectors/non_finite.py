"""NaN and infinity in loss or grad_norm: always on, immediate.

A lone non-finite gradient with the overflow flag set is how dynamic loss scaling probes for its scale; only three in a row count then.
Hugging Face logs a NaN loss as exactly 0 beside a NaN gradient norm: the gradient norm says so here too. Source: 5-detectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from monitor_core.detectors.base import Finding
from monitor_core.detectors.spans import Span, Spans

_OVERFLOWS_IN_A_ROW = 3  # records; a probe of the loss scale is one, at times two
_GAP_ROWS = 20  # rows; bad steps this near are one event


class NonFinite:
    """States a finding at the first bad record."""

    name = "non_finite"
    inputs = ("loss", "grad_norm", "overflow")

    def __init__(self) -> None:
        self._row = -1
        self._overflows: list[tuple[int, int]] = []
        self._spans = Spans(_GAP_ROWS)

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """See ``Detector.update``."""
        loss, norm, overflow = values
        self._row += 1
        bad = any(value is not None and not math.isfinite(value) for value in (loss, norm))
        if not bad:
            self._overflows.clear()
            return ()
        rows = [(self._row, step)]
        if overflow:
            if len(self._overflows) <= _OVERFLOWS_IN_A_ROW:  # a run may overflow for ever
                self._overflows.append((self._row, step))
            if len(self._overflows) < _OVERFLOWS_IN_A_ROW:
                return ()
            rows = self._overflows if len(self._overflows) == _OVERFLOWS_IN_A_ROW else rows
        before = len(self._spans.items)
        for row, at in rows:
            self._spans.add(row, at, 0.0)
        return (self._finding(self._spans.items[-1]),) if len(self._spans.items) > before else ()

    def findings(self) -> tuple[Finding, ...]:
        """See ``Detector.findings``."""
        return tuple(self._finding(span) for span in self._spans.items)

    def _finding(self, span: Span) -> Finding:
        return Finding(
            kind="non_finite",
            detector=self.name,
            metric="loss",
            severity="error",
            first_step=span.first_step,
            last_step=span.last_step,
            ongoing=self._spans.ongoing(span, self._row),
            evidence={"steps": span.rows},
            causes=("lr_too_high", "overflow_before", "bad_batches"),
            advice=("restore_checkpoint", "lower_lr", "clip_gradients"),
        )
