"""Hand-written loops: one step of ``value_and_grad`` and an optimizer, recorded like one of ``Model.train``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from mindspore import dtype as mstype
from mindspore import ops

from monitor_core.clock import Clock
from monitor_core.collectors.outputs import collect_outputs


class OwnStep:
    """What ``with monitor.step(...) as step:`` gives: set on it what becomes known inside.

    ``step.loss`` (a tensor or number), ``step.grads`` (tensors; their global L2 norm becomes ``grad_norm``) and any metric by
    ``step.metrics["name"] = number``.
    """

    def __init__(self, clock: Clock, loss: object, grads: Sequence[Any] | None, metrics: dict[str, float]) -> None:
        self.loss = loss
        self.grads = grads
        self.metrics = metrics
        self._now = clock.monotonic
        self._begun = self._now()

    def scalars(self, *, with_loss: bool, with_norm: bool) -> dict[str, float]:
        """The step's metrics; ``step_time`` (s) is the time spent inside the ``with`` block."""
        found: dict[str, float] = {}
        if with_loss:
            outputs = collect_outputs(self.loss)
            found |= {"loss": outputs["loss"]} if "loss" in outputs else {}
        if with_norm and self.grads is not None:
            found["grad_norm"] = global_norm(self.grads)
        found["step_time"] = self._now() - self._begun
        return found | {name: float(value) for name, value in self.metrics.items()}


class OwnLoop:
    """What a Monitor gives to a hand-written loop."""

    _clock: Clock

    @contextlib.contextmanager
    def step(
        self,
        step: int,
        *,
        loss: object = None,
        grads: Sequence[Any] | None = None,
        epoch: int | None = None,
        **metrics: float,
    ) -> Iterator[OwnStep]:
        """One step of a hand-written loop: a record when the block ends without an exception.

        ``with monitor.step(step) as s: loss, grads = ...; optimizer(grads); s.loss, s.grads = loss, grads``. Whatever is wrong with the
        values costs the record and not the loop. End the loop with ``monitor.close()``.
        """
        own = OwnStep(self._clock, loss, grads, dict(metrics))
        yield own
        self._own_step(step, epoch, own)

    def _own_step(self, step: int, epoch: int | None, own: OwnStep) -> None:
        """Record it; never raises."""
        raise NotImplementedError


def global_norm(gradients: Sequence[Any]) -> float:
    """L2 norm over all elements of all tensors, added up in float32 as the tap does."""
    total = ops.zeros((), mstype.float32)
    for gradient in gradients:
        total = total + ops.square(ops.cast(gradient, mstype.float32)).sum()
    return float(ops.sqrt(total).asnumpy())
