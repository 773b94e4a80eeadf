"""Findings of every run, kept up while it grows, and as marks for the page.

The detectors are those of the training side, fed with the same records in the same order; so a finished file gives the
findings that the live training had. Work is done in slices: a run of a million steps must not hold up the live ticks of
another.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dashboard.store.base import SeriesKey, Snapshot
from monitor_core.detectors import Detector, Finding, default_detectors
from monitor_core.detectors.texts import Language, describe

SLICE_ROWS = 2_000  # about 40 ms of detectors: less than a frame that anybody would miss


class RankFinding(NamedTuple):
    """A finding and the rank it was seen on."""

    rank: int
    finding: Finding


@dataclass(slots=True)
class _Progress:
    """Detectors of one series and how far they have been fed."""

    layout: int
    rows: int = 0
    detectors: list[Detector] = field(default_factory=default_detectors)


class Overlays:
    """One thread advances it, any number read ``findings``."""

    def __init__(self) -> None:
        self._progress: dict[SeriesKey, _Progress] = {}
        self._found: Mapping[str, tuple[RankFinding, ...]] = {}
        self._lock = threading.Lock()
        self.version = 0
        """Grows with every change of the findings."""

    def advance(self, snapshot: Snapshot) -> bool:
        """Feed each series at most ``SLICE_ROWS`` of its new rows; returns whether there is more to do."""
        changed: set[str] = set()
        more = False
        for key in snapshot.series():
            total = snapshot.extent(key).rows
            progress = self._progress.get(key)
            if progress is not None and progress.rows >= total:
                continue
            progress = self._feed(key, snapshot, progress)
            changed.add(key.run)
            more = more or progress.rows < total
        if changed:
            self._publish(changed)
        return more

    def findings(self, run: str) -> tuple[RankFinding, ...]:
        """Findings of a run, by first step; empty for a run that is not known (yet)."""
        with self._lock:
            return self._found.get(run, ())

    def rows(self, run: str) -> int:
        """How many rows of the run the detectors have seen."""
        return sum(progress.rows for key, progress in list(self._progress.items()) if key.run == run)

    def drop(self, run: str) -> None:
        """Forget a run."""
        self._progress = {key: progress for key, progress in self._progress.items() if key.run != run}
        with self._lock:
            self._found = {name: found for name, found in self._found.items() if name != run}

    def _feed(self, key: SeriesKey, snapshot: Snapshot, progress: _Progress | None) -> _Progress:
        detectors = progress.detectors if progress else default_detectors()
        metrics = list(dict.fromkeys(name for detector in detectors for name in detector.inputs))
        start = progress.rows if progress else 0
        rows = snapshot.rows(key, start, start + SLICE_ROWS, metrics)
        if progress is None or progress.layout != rows.layout:
            # New, or late rows were sorted in: what the detectors saw before is not the beginning of the run any more.
            progress = _Progress(rows.layout)
            self._progress[key] = progress
            rows = snapshot.rows(key, 0, SLICE_ROWS, metrics)
        columns = dict(zip(metrics, rows.columns, strict=True))
        for detector in progress.detectors:
            for step, *values in zip(rows.step, *(columns[name] for name in detector.inputs), strict=True):
                if any(value is not None for value in values):  # as in the recorder: no row of this detector's
                    detector.update(step, values)
        progress.rows += len(rows.step)
        return progress

    def _publish(self, changed: set[str]) -> None:
        fresh = {
            run: tuple(
                sorted(
                    (
                        RankFinding(key.rank, finding)
                        for key, progress in self._progress.items()
                        if key.run == run
                        for detector in progress.detectors
                        for finding in detector.findings()
                    ),
                    key=lambda item: (item.finding.first_step, item.rank, item.finding.detector),
                )
            )
            for run in changed
        }
        with self._lock:
            self._found = {**self._found, **fresh}
            self.version += 1


def marks(findings: Sequence[RankFinding], language: Language) -> list[dict[str, Any]]:
    """Findings as plain values for the page: where to draw them and what to say, in plain text (never markup)."""
    return [_mark(item.rank, item.finding, language) for item in findings]


def _mark(rank: int, finding: Finding, language: Language) -> dict[str, Any]:
    text = describe(finding, language)
    return {
        "kind": finding.kind,
        "detector": finding.detector,
        "metric": finding.metric,
        "severity": finding.severity,
        "rank": rank,
        "first": finding.first_step,
        "last": finding.last_step,
        "ongoing": finding.ongoing,
        "title": text.title,
        "evidence": text.evidence,
        "causes": list(text.causes),
        "advice": list(text.advice),
    }
