"""What a detector is and what it states. Pure: no clock, no file, no log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector states about a span of steps.

    ``(detector, metric, first_step)`` identifies it within a run and rank: a later finding with the same
    identity replaces the earlier one (it has grown, or has ended).
    """

    kind: str
    """What it is, such as ``loss_oscillation``; key of its texts in ``detectors/texts.py``."""
    detector: str
    """Name in the registry of the rule that stated it."""
    metric: str
    severity: Severity
    first_step: int
    last_step: int
    """Inclusive; the newest step that belongs to it while ``ongoing``."""
    ongoing: bool
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Numbers behind the statement, by name, such as ``{"ratio": 0.41, "threshold": 0.3}``."""
    causes: tuple[str, ...] = ()
    """Keys of probable causes, likeliest first."""
    advice: tuple[str, ...] = ()
    """Keys of what to do."""


class Detector(Protocol):
    """A small state machine over one run and rank."""

    @property
    def name(self) -> str:
        """Name in the registry."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Metrics it looks at, in the order ``update`` gets them; the first is the one it speaks about."""
        ...

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """Take one record; return the findings that began, grew in meaning, or ended with it.

        A value is None when the record lacks that metric. A step that is not above the last one means a resume:
        a detector with a baseline starts it anew (the article's rules, which know rows only, go on).
        """
        ...

    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, oldest first, the ongoing ones with their newest ``last_step``."""
        ...
