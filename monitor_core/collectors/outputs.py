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
    single = _single(outputs)
    if single is not None:
        return {"loss": single}
    parts = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    found: dict[str, float] = {}
    loss = _array(parts[0]) if parts else None
    if loss is not None:
        found["loss"] = float(loss.mean()) if loss.size != 1 else float(loss.reshape(()))
    if len(parts) == 3:
        overflow, scale = _array(parts[1]), _array(parts[2])
        if overflow is not None and overflow.dtype == bool and scale is not None and scale.size == 1:
            found["overflow"] = float(overflow.any())
            found["loss_scale"] = float(scale.reshape(()))
    return found


def _single(outputs: object) -> float | None:
    """The one number of a tensor: by far the most common output, and each question to a tensor costs at every step."""
    try:
        raw = outputs.item()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError, RuntimeError):  # a tuple, or not exactly one element
        return None
    return float(raw) if isinstance(raw, (float, int)) else None


def _array(value: object) -> NDArray[Any] | None:
    """A non-empty numeric array of what is a tensor, an array or a number."""
    raw = value
    as_numpy = getattr(value, "asnumpy", None)
    if callable(as_numpy):
        # One element by item(): a tensor's way to an array is much the longer one, and this is done at every step.
        raw = value.item() if getattr(value, "size", 0) == 1 else as_numpy()  # type: ignore[attr-defined]
    if not isinstance(raw, (np.ndarray, np.generic, int, float)):
        return None
    array = np.asarray(raw)
    return array if array.size and array.dtype.kind in "biuf" else None
