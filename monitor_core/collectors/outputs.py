"""What the train-one-step cell returned: loss, overflow flag, loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT_OUTPUTS: Mapping[str, str] = {
    "overflow": "the step cell does not return (loss, overflow, loss scale): no loss-scale cell in this training",
    "loss_scale": "the step cell does not return (loss, overflow, loss scale): no loss-scale cell in this training",
}


def collect_outputs(outputs: object) -> dict[str, float]:
    """``loss`` (mean of all elements, as LossMonitor prints it), and ``overflow`` (0 or 1) with ``loss_scale`` where there are any.

    ``outputs``: what MindSpore calls ``net_outputs``: a tensor, a number, or a tuple whose first element is the loss. Three elements with a
    boolean second are a loss-scale cell's (loss, overflow, scale). What is no number gives no metric.
    """
    parts = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    found: dict[str, float] = {}
    loss = _number(parts[0]) if parts else None
    if loss is not None:
        found["loss"] = float(loss)
    if len(parts) == 3:
        overflow, scale = _number(parts[1], any_of=True), _number(parts[2])
        if isinstance(overflow, bool) and scale is not None:
            found["overflow"], found["loss_scale"] = float(overflow), float(scale)
    return found


def _number(value: object, *, any_of: bool = False) -> float | bool | None:
    """One number (of several elements their mean, or whether any is true); None for what is no number."""
    if getattr(value, "size", 0) == 1 and hasattr(value, "asnumpy"):
        item = value.item()  # type: ignore[attr-defined]  # of a tensor: four times as fast as going through an array
        return item if isinstance(item, (bool, int, float)) else None
    array = _array(value)
    if array is None:
        return None
    if array.dtype == bool and any_of:
        return bool(array.any())
    return float(array.mean()) if array.size != 1 else float(array.reshape(()))


def _array(value: object) -> NDArray[Any] | None:
    """A non-empty numeric array of what is a tensor, an array or a number."""
    as_numpy = getattr(value, "asnumpy", None)
    raw = as_numpy() if callable(as_numpy) else value
    if not isinstance(raw, (np.ndarray, np.generic, int, float)):
        return None
    array = np.asarray(raw)
    return array if array.size and array.dtype.kind in "biuf" else None
