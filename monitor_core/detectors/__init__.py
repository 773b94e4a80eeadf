"""Which detectors there are. Import the functions and classes from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from monitor_core.detectors.base import Detector, Finding, Severity
from monitor_core.detectors.input_change import InputChange
from monitor_core.detectors.non_finite import NonFinite
from monitor_core.detectors.oscillation import LossOscillation, detect_loss_oscillation
from monitor_core.detectors.step_time import StepTimeSpike, detect_step_time_spike
from monitor_core.detectors.vanish import GradientVanish, detect_gradient_vanish

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "REGISTRY",
    "Detector",
    "Finding",
    "Severity",
    "article_advice",
    "default_detectors",
    "detect_gradient_vanish",
    "detect_loss_oscillation",
    "detect_step_time_spike",
]

#: A detector's name, as findings carry it, to what builds a fresh one.
REGISTRY: dict[str, Callable[[], Detector]] = {
    detector.name: detector for detector in (LossOscillation, GradientVanish, StepTimeSpike, NonFinite, InputChange)
}


def default_detectors() -> list[Detector]:
    """Fresh instances of every detector, for one run and rank."""
    return [build() for build in REGISTRY.values()]


def article_advice(df: pd.DataFrame) -> list[Finding]:
    """The article's three checks on a whole table: its advice as findings, none where its triggers are not met.

    ``df``: as ``load_monitor_logs`` gives it. Unlike the article's ``print`` lines, each finding says where, with its evidence.
    """
    steps = df["step"].tolist()
    found: list[Finding] = []
    for detector in (LossOscillation(), GradientVanish(), StepTimeSpike(kept_rows=max(2, len(df)))):
        columns = [df[name].tolist() for name in detector.inputs]
        for step, *values in zip(steps, *columns, strict=True):
            detector.update(step, values)
        found.extend(detector.findings())
    return found
