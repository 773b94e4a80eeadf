"""What MindSpore and the process around it say about this training."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import mindspore

from monitor_core.detectors.texts import Language


def parameters_of(run_context: Any) -> Mapping[str, Any]:
    """The callback parameters (a dict) of a RunContext, or the parameters themselves."""
    found: Mapping[str, Any] = run_context if isinstance(run_context, dict) else run_context.original_args()
    return found


def steps_before(params: Mapping[str, Any]) -> int:
    """Steps of the epochs that ``initial_epoch`` skips, at a training's first epoch begin.

    MindSpore counts epochs on from ``initial_epoch`` but steps from 0 again; a resumed run would then be drawn over its own beginning.
    """
    epoch, batches = params.get("cur_epoch_num"), params.get("batch_num")
    if params.get("cur_step_num") or not isinstance(epoch, int) or not isinstance(batches, int):
        return 0
    return max(0, epoch - 1) * max(0, batches)


def rank_and_size() -> tuple[int, int]:
    """Rank and world size of this process: MindSpore's when its communication is up, else the environment's."""
    from mindspore import communication

    with contextlib.suppress(RuntimeError, ValueError):
        return int(communication.get_rank()), int(communication.get_group_size())
    rank, size = os.environ.get("RANK_ID", "0"), os.environ.get("RANK_SIZE", "1")
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else (0, 1)


def device_memory() -> tuple[Callable[[], int] | None, Callable[[], int] | None]:
    """What tells the peak and the present device memory (bytes); None on CPU, where MindSpore always says 0."""
    if mindspore.get_context("device_target") == "CPU":
        return None, None
    runtime = getattr(mindspore, "runtime", None)
    return getattr(runtime, "max_memory_allocated", None), getattr(runtime, "memory_allocated", None)


def synchronize() -> None:
    """Wait until everything that PYNATIVE mode has launched is done."""
    # MindSpore's public runtime.synchronize refuses the CPU, where operators are launched ahead all the same.
    executor = _executor()
    if executor is None:
        mindspore.runtime.synchronize()
    else:
        executor.sync()


@functools.cache
def _executor() -> Any:
    for module in ("mindspore.graph.api", "mindspore.common.api"):  # MindSpore 2.9 moved it
        with contextlib.suppress(ImportError, AttributeError):
            return importlib.import_module(module)._pynative_executor
    return None


def is_pynative() -> bool:
    """Whether cells run operator by operator now."""
    return bool(mindspore.get_context("mode") == mindspore.PYNATIVE_MODE)


def user_language() -> Language:
    spoken = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "zh" if spoken.lower().startswith("zh") else "en"
