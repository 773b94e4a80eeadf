"""Forward, backward and communication time of a step cell, where the mode lets Python stand between them.

    network . gradients . [reducer: AllReduce over the ranks] . optimizer

In PYNATIVE mode hooks of these three cells fire in Python and mark the borders; each waits for the device first, because operators are only
launched. That waiting is why these metrics are off unless asked for. In GRAPH mode the step is one compiled whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mindspore import nn

IN_GRAPH = "GRAPH mode runs a step as one compiled graph: its phases have no border that Python could see; use PYNATIVE mode or a profiler"
NO_FORWARD = "the train network has no 'network' cell whose forward hooks could fire (a custom step cell)"
OWN_BPROP = "the network defines its own bprop, which MindSpore runs without forward hooks"
ONE_PROCESS = "one process: nothing is communicated"
NO_REDUCER = "the step cell reduces no gradients over the ranks (parallel_mode is not data parallel, or it is a custom step cell)"


class PhaseTimer:
    """Follows the phases of one step cell's steps; ``synchronize`` waits for what was launched."""

    def __init__(self, now: Callable[[], float], synchronize: Callable[[], None]) -> None:
        self._now = now
        self._synchronize = synchronize
        self._handles: list[Any] = []
        self._marks: dict[str, float] = {}
        self._timed = False
        self._reduced_bytes = 0

    def listen(self, network: Any, options: Mapping[str, bool], *, pynative: bool, ranks: int) -> dict[str, str]:
        """Hook a step cell as the options want it; returns what cannot be measured, with the reason."""
        self.leave()
        reasons: dict[str, str] = {}
        reducer = getattr(network, "grad_reducer", None)
        reduces = bool(getattr(network, "reducer_flag", False)) and isinstance(reducer, nn.Cell)
        if options["include_comm"]:
            self._reduced_bytes = _gradient_bytes(network) if reduces else 0
            reasons |= _why_no_communication(reduces=reduces, pynative=pynative, ranks=ranks)
        if options["include_phase_time"]:
            reason = _why_no_phases(getattr(network, "network", None), pynative=pynative)
            reasons |= dict.fromkeys(("forward_time", "backward_time"), reason) if reason else {}
            self._timed = reason is None
        if pynative and (self._timed or self._reduced_bytes):
            self._hook(network, reducer if isinstance(reducer, nn.Cell) else None)
        return reasons

    def leave(self) -> None:
        """Take all hooks away again."""
        while self._handles:
            self._handles.pop().remove()
        self._marks.clear()
        self._reduced_bytes = 0
        self._timed = False

    def step_begin(self) -> None:
        """What ran since the last step, such as an evaluation of the same cell, is no phase of this one."""
        self._marks.clear()

    def collect(self) -> dict[str, float]:
        """``forward_time``, ``backward_time``, ``comm_time`` (s), ``comm_bytes``, ``comm_bandwidth`` (bytes/s) of the step just done."""
        marks, self._marks = self._marks, {}
        found: dict[str, float] = {}
        if self._timed and "forward" in marks and "forwarded" in marks:
            found["forward_time"] = marks["forwarded"] - marks["forward"]
            if "backwarded" in marks:
                found["backward_time"] = marks["backwarded"] - marks["forwarded"]
        if self._reduced_bytes:
            found["comm_bytes"] = float(self._reduced_bytes)
            if "reduced" in marks and "backwarded" in marks:
                took = marks["reduced"] - marks["backwarded"]
                found["comm_time"] = took
                if took > 0:
                    found["comm_bandwidth"] = self._reduced_bytes / took
        return found

    def _hook(self, network: Any, reducer: nn.Cell | None) -> None:
        forward, optimizer = getattr(network, "network", None), getattr(network, "optimizer", None)
        if isinstance(forward, nn.Cell):
            self._handles.append(forward.register_forward_pre_hook(self._marker("forward")))
            self._handles.append(forward.register_forward_hook(self._marker("forwarded")))
        after = reducer or optimizer
        if isinstance(after, nn.Cell):
            self._handles.append(after.register_forward_pre_hook(self._marker("backwarded")))
        if reducer is not None:
            self._handles.append(reducer.register_forward_hook(self._marker("reduced")))

    def _marker(self, name: str) -> Callable[..., None]:
        def mark(*_: object) -> None:
            self._synchronize()
            # The first one counts: a cell may call its network again within a step.
            self._marks.setdefault(name, self._now())

        return mark


def _gradient_bytes(network: Any) -> int:
    """Bytes of all gradients, which have the shapes and types of their parameters: what a rank hands to AllReduce in each step."""
    parameters = getattr(getattr(network, "optimizer", None), "parameters", None) or ()
    return sum(int(parameter.nbytes) for parameter in parameters)


def _why_no_phases(forward: object, *, pynative: bool) -> str | None:
    if not pynative:
        return IN_GRAPH
    if not isinstance(forward, nn.Cell):
        return NO_FORWARD
    return OWN_BPROP if hasattr(forward, "bprop") else None


def _why_no_communication(*, reduces: bool, pynative: bool, ranks: int) -> dict[str, str]:
    if reduces:
        return {} if pynative else dict.fromkeys(("comm_time", "comm_bandwidth"), IN_GRAPH)
    return dict.fromkeys(("comm_bytes", "comm_time", "comm_bandwidth"), NO_REDUCER if ranks > 1 else ONE_PROCESS)
