"""What a training was set up with, as plain values for ``run.json``."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mindspore
from mindspore import Parameter, Tensor, nn

_MAX_TEXT = 200
_MAX_RATES = 8  # of a schedule: its beginning and end tell which one it is
#: Hyper-parameters by the names under which MindSpore's optimizers keep them.
_HYPER_PARAMETERS = (
    "momentum", "beta1", "beta2", "eps", "epsilon", "alpha", "rho", "decay", "nesterov", "use_nesterov", "centered", "loss_scale",
    "dampening", "amsgrad", "clip", "weight_decay",
)  # fmt: skip


def training_facts(params: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer, network, data and mode of the training that the callback parameters describe.

    A fact that cannot be read is left out: it must never stand between a user and the training.
    """
    facts: dict[str, Any] = {"mindspore": mindspore.__version__}
    network: Any = params.get("train_network")
    _put(facts, "mode", lambda: "GRAPH" if mindspore.get_context("mode") == mindspore.GRAPH_MODE else "PYNATIVE")
    _put(facts, "device_target", lambda: str(mindspore.get_context("device_target")))
    _put(facts, "parallel_mode", lambda: str(params.get("parallel_mode")) if params.get("parallel_mode") else None)
    _put(facts, "network", lambda: _class_name(params.get("network") or network))
    _put(facts, "step_cell", lambda: _class_name(network))
    _put(facts, "parameters", lambda: _elements(network.optimizer.parameters))
    _put(facts, "optimizer", lambda: optimizer_facts(getattr(network, "optimizer", None)))
    _put(facts, "epochs", lambda: _whole(params.get("epoch_num")))
    _put(facts, "steps_per_epoch", lambda: _whole(params.get("batch_num")))
    _put(facts, "dataset_sink_mode", lambda: bool(params.get("dataset_sink_mode")))
    _put(facts, "batch_size", lambda: _whole(params["train_dataset"].get_batch_size()))
    return facts


def optimizer_facts(optimizer: Any) -> dict[str, Any] | None:
    """Class, learning rates and hyper-parameters of an optimizer; None when there is none."""
    optimizer = getattr(optimizer, "optimizer", None) or optimizer  # behind the tap
    if not isinstance(optimizer, nn.Cell):
        return None
    facts: dict[str, Any] = {"class": type(optimizer).__name__}
    rates: Any = getattr(optimizer, "learning_rate", None)
    grouped = bool(getattr(optimizer, "is_group_lr", False))  # a tuple, or a CellList when all rates are schedules
    distinct = list({id(rate): rate for rate in (rates if grouped else [rates])}.values())
    _put(facts, "learning_rate", lambda: [_rate(rate) for rate in distinct] if grouped else _rate(distinct[0]))
    for name in _HYPER_PARAMETERS:
        _put(facts, name, lambda name=name: _number(getattr(optimizer, name, None)))  # type: ignore[misc]
    _put(facts, "groups", lambda: len(optimizer.group_params) if getattr(optimizer, "is_group", False) else None)
    return facts


def _put(facts: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    with contextlib.suppress(AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
        value = read()
        if value is not None:
            facts[name] = value


def _elements(parameters: Iterable[Any]) -> int:
    """Elements of all parameters that are trained."""
    return sum(int(parameter.size) for parameter in parameters)


def _class_name(cell: object) -> str | None:
    return None if cell is None else type(cell).__name__[:_MAX_TEXT]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> Any:
    """A number or truth value, out of a tensor too; schedules by their class."""
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (Tensor, Parameter)):
        value = float(value.asnumpy()) if value.size == 1 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _class_name(value) if isinstance(value, nn.Cell) else None


def _rate(rate: Any) -> Any:
    """A fixed rate as a number, a list of rates by its length and ends, a schedule cell by its class."""
    if isinstance(rate, (Tensor, Parameter, float, int)):
        return _number(rate)
    values = getattr(rate, "learning_rate", None)  # MindSpore turns a list into a cell that holds it
    if isinstance(values, (Tensor, Parameter)) and values.size > 1:
        listed = values.asnumpy().reshape(-1).tolist()
        shown = listed if len(listed) <= _MAX_RATES else [*listed[: _MAX_RATES // 2], *listed[-_MAX_RATES // 2 :]]
        return {"class": type(rate).__name__, "steps": len(listed), "values": shown}
    return {"class": type(rate).__name__}
