"""The tap between a train-one-step cell and its optimizer: gradient norm and learning rate, at the place where both are true.

The tap only reads: it hands the very same gradients on, so weights and losses stay bit-identical (tests/mindspore). Its state is
in a few small ``Parameter``s that are deliberately not registered with the cell, so that no checkpoint ever holds them. A tap stays in
its network after training, because a compiled graph cannot be changed back; another Monitor takes it over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

NO_OPTIMIZER = "the train network has no optimizer attribute to listen at (a custom step cell)"
SKIPPED = "the optimizer is not called on overflow steps, so their gradient norm is not measured"
NO_LAYERS = "the optimizer does not say which parameters its gradients belong to (it has no 'parameters')"

#: Gradients below this many elements are copied together and summed at once: every kernel costs a launch, small ones little else.
_SMALL_ELEMENTS = 65_536
#: Elements summed one after another in float32: short rows keep the norm within 3e-7 of float64 (tests), and on CPU one full reduction
#: of a large tensor nearly doubles the time of a step (design 10).
_ROW_ELEMENTS = 1024
_UNWRITTEN = -1.0  # no sum of squares: stays where gradients and parameters differ in number


class OptimizerTap(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Stands in for ``optimizer`` in a step cell; attributes of the optimizer are reached through it.

    ``with_norm``: sum the squares of all gradients. ``with_layers``: of each gradient on its own (one kernel or two more for each).
    """

    def __init__(self, optimizer: nn.Cell, *, with_norm: bool = True, with_layers: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.layers = _layer_names(optimizer) if with_layers else ()
        self.layer_count = len(self.layers)
        self.with_norm = with_norm
        self.scheduled = _scheduled_places(optimizer)
        self.grouped = bool(getattr(optimizer, "is_group_lr", False))
        self.row_sum = ops.ReduceSum()
        self.packed = sum(size for size in _sizes(optimizer) if size < _SMALL_ELEMENTS)
        self.fill = Tensor(np.zeros(-self.packed % _ROW_ELEMENTS, np.float32)) if self.packed % _ROW_ELEMENTS else None
        self.one = Tensor(1, mstype.int32)
        self._state("square_sum", np.zeros((), np.float32))
        self._state("calls", np.zeros((), np.int32))
        self._state("rates", np.zeros(len(self.scheduled), np.float32))
        self._state("layer_sums", np.full(self.layer_count, _UNWRITTEN, np.float32))

    def _state(self, name: str, value: Any) -> None:
        """Past Cell.__setattr__, which would register the parameter and put it into checkpoints."""
        object.__setattr__(self, name, Parameter(Tensor(value), name=f"msmon.{name}", requires_grad=False))

    def construct(self, gradients: Any) -> Any:
        if self.layer_count > 0 and len(gradients) == self.layer_count:
            ops.assign(self.layer_sums, self._layer_sums(gradients))
        elif self.with_norm:
            ops.assign(self.square_sum, self._square_sum(gradients))
        ops.assign_add(self.calls, self.one)
        if self.scheduled:
            found: Any = ()
            for place in self.scheduled:
                schedule = self.optimizer.learning_rate[place] if self.grouped else self.optimizer.learning_rate
                rate = schedule(self.optimizer.global_step)
                found = (*found, ops.cast(ops.reshape(rate, ()), mstype.float32))
            ops.assign(self.rates, ops.stack(found))
        return self.optimizer(gradients)

    def _layer_sums(self, gradients: Any) -> Any:
        sums: Any = ()
        for gradient in gradients:
            sums = (*sums, self._sum_of(gradient))
        return ops.stack(sums)

    def _square_sum(self, gradients: Any) -> Any:
        """Small gradients in one go, large ones each on its own, where copying would cost more than launching."""
        small: Any = ()
        large: Any = ()
        elements = 0
        for gradient in gradients:
            if gradient.size < _SMALL_ELEMENTS:
                small = (*small, ops.reshape(_as_float32(gradient), (-1,)))
                elements += gradient.size
            else:
                large = (*large, gradient)
        if elements != self.packed:  # not the parameters' shapes, so the fill does not fit
            small, large = (), gradients
        total = ops.zeros((), mstype.float32) if not small else self._sum_packed(small)
        for gradient in large:
            total = total + self._sum_of(gradient)
        return total

    def _sum_packed(self, small: Any) -> Any:
        if self.fill is not None:
            small = (*small, self.fill)
        rows = ops.reshape(ops.concat(small), (-1, _ROW_ELEMENTS))
        return self.row_sum(self.row_sum(ops.square(rows), 1))

    def _sum_of(self, gradient: Any) -> Any:
        square = ops.square(_as_float32(gradient))
        if gradient.size % _ROW_ELEMENTS == 0:
            square = self.row_sum(ops.reshape(square, (-1, _ROW_ELEMENTS)), 1)
        elif square.ndim > 1:
            square = self.row_sum(ops.reshape(square, (square.shape[0], -1)), 1)
        return self.row_sum(square)

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
        self._calls = int(tap.calls.item())
        # With a fixed loss scale and drop_overflow_update=False the optimizer itself divides by it, behind the tap.
        self._unscale = 1.0 / float(getattr(tap.optimizer, "loss_scale", 1.0) or 1.0)
        self._fixed = _fixed_rates(tap.optimizer)
        self._rates: list[float] | None = None

    def step_begin(self) -> None:
        """Fixed rates are read here: LearningRateScheduler and its like change them at a step's end, for the next step."""
        self._rates = [float(parameter.item()) for parameter in self._fixed]

    def collect(self, *, norm: bool, rate: bool, layers: bool = False) -> dict[str, float]:
        """``grad_norm`` (global L2), ``grad_norm/<parameter>`` and ``learning_rate`` of the step just done.

        Further groups are ``learning_rate/group_1`` and so on. Nothing of what is measured in the tap when the optimizer was not called.
        """
        calls = int(self.tap.calls.item())
        called, self._calls = calls != self._calls, calls
        found: dict[str, float] = {}
        if called:
            found |= self._norms(norm, layers)
        if rate:
            scheduled = self.tap.rates.asnumpy().tolist() if called and self.tap.scheduled else []
            if self._rates is None:  # called by hand, without a step begin
                self.step_begin()
            rates = [*(self._rates or ()), *scheduled]
            self._rates = None
            for number, value in enumerate(rates):
                found["learning_rate" if number == 0 else f"learning_rate/group_{number}"] = value
        return found

    def _norms(self, norm: bool, layers: bool) -> dict[str, float]:
        found: dict[str, float] = {}
        sums = self.tap.layer_sums.asnumpy().astype(np.float64) if self.tap.layers else np.empty(0)
        if len(sums) and sums[0] != _UNWRITTEN:
            if norm:
                found["grad_norm"] = math.sqrt(sums.sum()) * self._unscale
            if layers:
                norms = np.sqrt(sums) * self._unscale
                found |= dict(zip(self.tap.layers, norms.tolist(), strict=True))
        elif norm and self.tap.with_norm:
            found["grad_norm"] = math.sqrt(self.tap.square_sum.item()) * self._unscale
        return found


def attach_tap(network: Any, *, with_norm: bool, with_layers: bool = False) -> TapReader | None:
    """Put a tap before the optimizer of a step cell, or take over the one that is there; None when there is no optimizer."""
    optimizer = getattr(network, "optimizer", None)
    if isinstance(optimizer, OptimizerTap):
        if optimizer.with_norm >= with_norm and bool(optimizer.layers) >= with_layers:
            return TapReader(optimizer)
        optimizer = optimizer.optimizer  # the tap of an earlier Monitor that wanted less
    if not isinstance(optimizer, nn.Cell):
        return None
    tap = OptimizerTap(optimizer, with_norm=with_norm, with_layers=with_layers)
    network.optimizer = tap
    compiled = getattr(network, "compile_cache", None)
    if compiled:
        # The graph was built without this tap, by a training before this one: it must be built again.
        compiled.clear()
    return TapReader(tap)


def _as_float32(gradient: Any) -> Any:
    return gradient if gradient.dtype == mstype.float32 else ops.cast(gradient, mstype.float32)


def _parameters(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "parameters", None) or ())


def _sizes(optimizer: Any) -> list[int]:
    return [int(np.prod(parameter.shape, dtype=np.int64)) for parameter in _parameters(optimizer)]


def _layer_names(optimizer: Any) -> tuple[str, ...]:
    return tuple(f"grad_norm/{parameter.name}" for parameter in _parameters(optimizer))


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
