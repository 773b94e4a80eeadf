"""The tap between a train-one-step cell and its optimizer: gradient norm and learning rate, at the place where both are true.

The tap only reads: it hands the very same gradients on, so weights and losses stay bit-identical (tests/mindspore). Its state is
one small ``Parameter`` that is deliberately not registered with the cell, so that no checkpoint ever holds it. A tap stays in
its network after training, because a compiled graph cannot be changed back; another Monitor takes it over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

_NORM, _TICK, _RATES = 0, 1, 2  # places in the tap's state vector

NO_OPTIMIZER = "the train network has no optimizer attribute to listen at (a custom step cell)"
SKIPPED = "the optimizer is not called on overflow steps, so their gradient norm is not measured"


class OptimizerTap(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Stands in for ``optimizer`` in a step cell; attributes of the optimizer are reached through it."""

    def __init__(self, optimizer: nn.Cell, *, with_norm: bool = True) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.with_norm = with_norm
        self.scheduled = _scheduled_places(optimizer)
        self.grouped = bool(getattr(optimizer, "is_group_lr", False))
        self.row_sum = ops.ReduceSum()
        size = _RATES + len(self.scheduled)
        state = Parameter(Tensor(np.zeros(size, np.float32)), name="msmon.tap", requires_grad=False)
        # Past Cell.__setattr__, which would register it and put it into checkpoints.
        object.__setattr__(self, "state", state)

    def construct(self, gradients: Any) -> Any:
        total = ops.zeros((), mstype.float32)
        if self.with_norm:
            for gradient in gradients:
                square = ops.square(ops.cast(gradient, mstype.float32))
                if square.ndim > 1:
                    # Summing rows first: on CPU one full reduction nearly doubles the time of a step (design 10).
                    square = self.row_sum(ops.reshape(square, (square.shape[0], -1)), 1)
                total = total + self.row_sum(square)
        found: Any = (ops.sqrt(total), 1.0 - self.state[_TICK])
        for place in self.scheduled:
            schedule = self.optimizer.learning_rate[place] if self.grouped else self.optimizer.learning_rate
            rate = schedule(self.optimizer.global_step)
            found = (*found, ops.cast(ops.reshape(rate, ()), mstype.float32))
        ops.assign(self.state, ops.stack(found))
        return self.optimizer(gradients)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            cells = self.__dict__.get("_cells") or {}
            if "optimizer" not in cells:
                raise
            return getattr(cells["optimizer"], name)


class TapReader:
    """Reads a tap on the host after each step."""

    def __init__(self, tap: OptimizerTap) -> None:
        self.tap = tap
        self._tick = float(tap.state.asnumpy()[_TICK])
        # With a fixed loss scale and drop_overflow_update=False the optimizer itself divides by it, behind the tap.
        self._unscale = 1.0 / float(getattr(tap.optimizer, "loss_scale", 1.0) or 1.0)
        self._fixed = _fixed_rates(tap.optimizer)

    def collect(self, *, norm: bool, rate: bool) -> dict[str, float]:
        """``grad_norm`` (global L2) and ``learning_rate`` of the step just done.

        Further groups are ``learning_rate/group_1`` and so on. Nothing of what is measured in the tap when the optimizer was not called.
        """
        state = self.tap.state.asnumpy()
        called = float(state[_TICK]) != self._tick
        self._tick = float(state[_TICK])
        found: dict[str, float] = {}
        if called and norm and self.tap.with_norm:
            found["grad_norm"] = float(state[_NORM]) * self._unscale
        if rate:
            scheduled = [float(value) for value in state[_RATES:]] if called else []
            rates = [float(parameter.asnumpy()) for parameter in self._fixed] + scheduled
            for number, value in enumerate(rates):
                found["learning_rate" if number == 0 else f"learning_rate/group_{number}"] = value
        return found


def attach_tap(network: Any, *, with_norm: bool) -> TapReader | None:
    """Put a tap before the optimizer of a step cell, or take over the one that is there; None when there is no optimizer."""
    optimizer = getattr(network, "optimizer", None)
    if isinstance(optimizer, OptimizerTap):
        return TapReader(optimizer)
    if not isinstance(optimizer, nn.Cell):
        return None
    tap = OptimizerTap(optimizer, with_norm=with_norm)
    network.optimizer = tap
    compiled = getattr(network, "compile_cache", None)
    if compiled:
        # The graph was built without the tap, by a training before this one: it must be built again.
        compiled.clear()
    return TapReader(tap)


def _rate_list(optimizer: Any) -> list[Any]:
    rates = getattr(optimizer, "learning_rate", None)
    if rates is None:
        return []
    return list(rates) if getattr(optimizer, "is_group_lr", False) else [rates]


def _scheduled_places(optimizer: Any) -> tuple[int, ...]:
    """Where in the optimizer's rates the distinct schedules stand; groups have one entry per parameter, many of them equal."""
    places: dict[int, int] = {}
    for place, rate in enumerate(_rate_list(optimizer)):
        if isinstance(rate, nn.Cell):
            places.setdefault(id(rate), place)
    return tuple(places.values())


def _fixed_rates(optimizer: Any) -> list[Any]:
    distinct: dict[int, Any] = {}
    for rate in _rate_list(optimizer):
        if isinstance(rate, Parameter):
            distinct.setdefault(id(rate), rate)
    return list(distinct.values())
