"""What an evaluation inside ``Model.fit`` found, as scalars of one record: ``eval_<name>`` for each of the model's metrics.

    train steps of an epoch . on_eval_begin . evaluation steps . on_eval_end . on_train_epoch_end

During an evaluation MindSpore counts ``cur_step_num`` anew; the record stands at the training step before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

LAST_BATCH = "eval_loss is MindSpore's: the loss of each evaluation's last batch; Model(..., metrics={'loss'}) gives the mean of all"
NO_NUMBER = "the metric's value is not one number, so no curve can be drawn of it"
LOSS = "eval_loss"
_PREFIX = "eval_"


class Evaluated(NamedTuple):
    """One evaluation."""

    scalars: dict[str, float]
    absent: dict[str, str]
    """Metrics that are no numbers, with the reason."""
    notes: tuple[str, ...]
    """What readers must know about the numbers."""


def evaluated(params: Mapping[str, Any]) -> Evaluated:
    """The callback parameters' ``metrics``, and MindSpore's ``eval_loss`` where the model has no ``loss`` metric of its own."""
    metrics = params.get("metrics") or {}
    own = (params.get("eval_results") or {}).get(LOSS)
    results = {} if own is None else {LOSS: own}
    results |= {name if str(name).startswith(_PREFIX) else f"{_PREFIX}{name}": value for name, value in metrics.items()}
    numbers = {name: _number(value) for name, value in results.items()}
    return Evaluated(
        {name: number for name, number in numbers.items() if number is not None},
        {name: NO_NUMBER for name, number in numbers.items() if number is None},
        (LAST_BATCH,) if results.get(LOSS) is own is not None else (),
    )


def _number(value: object) -> float | None:
    """A number, or the one element of an array or tensor."""
    as_numpy = getattr(value, "asnumpy", None)
    raw = as_numpy() if callable(as_numpy) else value
    if not isinstance(raw, (np.ndarray, np.generic, int, float)) or np.size(raw) != 1:
        return None
    return float(np.asarray(raw).reshape(())) if np.asarray(raw).dtype.kind in "biuf" else None
