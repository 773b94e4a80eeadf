"""Input tensors of a shape or type that was never seen before: a graph is compiled anew, or the data is not what it was.

A shorter last batch comes back in every epoch; it is one new set of shapes and told once.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor_core.detectors.base import Finding


class InputChange:
    """States a finding at the first step of every further set of input shapes and types."""

    name = "input_change"
    inputs = ("input_signature",)

    def __init__(self) -> None:
        self._known: set[float] = set()
        self._findings: list[Finding] = []

    def update(self, step: int, values: Sequence[float | None]) -> tuple[Finding, ...]:
        """See ``Detector.update``; a restarted training numbers its sets from 0 again and finds the same ones."""
        signature = values[0]
        if signature is None or signature in self._known:
            return ()
        self._known.add(signature)
        if len(self._known) == 1:
            return ()
        finding = Finding(
            kind="input_change",
            detector=self.name,
            metric="input_signature",
            severity="info",
            first_step=step,
            last_step=step,
            ongoing=False,
            evidence={"sets": len(self._known)},
            causes=("last_batch", "data_changed"),
            advice=("drop_remainder", "check_inputs"),
        )
        self._findings.append(finding)
        return (finding,)

    def findings(self) -> tuple[Finding, ...]:
        """See ``Detector.findings``."""
        return tuple(self._findings)
