"""One finished step to scalars: the collectors together, as the options want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor_core.clock import Clock
from monitor_core.collectors.inputs import batch_samples, input_shapes
from monitor_core.collectors.memory import DeviceMemory, HostUsage
from monitor_core.collectors.outputs import ABSENT_OUTPUTS, collect_outputs
from monitor_core.collectors.timing import StepTimer
from monitor_core.mindspore.environment import device_memory
from monitor_core.mindspore.train_step import NO_OPTIMIZER, SKIPPED, TapReader, attach_tap
from monitor_core.record import NO_NESTED

_SINK_NOTE = "data set sink mode: one record covers a whole sink of steps; nothing is interpolated"


class StepCollector:
    """What is measured of the training that it listens to."""

    def __init__(self, clock: Clock) -> None:
        self.timer = StepTimer(clock)
        self._host = HostUsage(clock)
        self._device = DeviceMemory(*device_memory())
        self._tap: TapReader | None = None

    def listen(self, train_network: Any, options: Mapping[str, bool]) -> None:
        """Put the tap before the network's optimizer."""
        self._tap = attach_tap(train_network, with_norm=options["include_grad"])

    def collect(
        self, params: Mapping[str, Any], options: Mapping[str, bool]
    ) -> tuple[dict[str, float], Mapping[str, object]]:
        """Scalars and nested values of the step that the callback parameters describe."""
        outputs = collect_outputs(params.get("net_outputs"))
        element = params.get("train_dataset_element")
        scalars: dict[str, float] = {}
        if options["include_loss"] and "loss" in outputs:
            scalars["loss"] = outputs["loss"]
        if self._tap is not None:
            scalars |= self._tap.collect(norm=options["include_grad"], rate=options["include_lr"])
        times = self.timer.step_end(batch_samples(element))
        if not options["include_throughput"]:
            times.pop("throughput", None)
        scalars |= times
        if options["include_overflow"] and "overflow" in outputs:
            scalars["overflow"], scalars["loss_scale"] = outputs["overflow"], outputs["loss_scale"]
        scalars |= self.memory(options)
        shapes = input_shapes(element) if options["include_input_shape"] else None
        return scalars, {"input_shapes": shapes} if shapes else NO_NESTED

    def memory(self, options: Mapping[str, bool]) -> dict[str, float]:
        """Memory of device and process, and CPU use."""
        return self._device.collect() | self._host.collect() if options["include_memory"] else {}

    def explain(self, params: Mapping[str, Any], options: Mapping[str, bool]) -> tuple[dict[str, str], list[str]]:
        """What cannot be measured in this training and why, and notes for readers; both go to ``run.json``."""
        reasons: dict[str, str] = {}
        notes: list[str] = []
        if options["include_memory"]:
            reasons |= self._device.absent()
        if self._tap is None and (options["include_grad"] or options["include_lr"]):
            reasons |= dict.fromkeys(("grad_norm", "learning_rate"), NO_OPTIMIZER)
        if options["include_overflow"] and hasattr(params.get("train_network"), "scale_sense"):
            notes.append(SKIPPED)
        elif options["include_overflow"]:
            reasons |= ABSENT_OUTPUTS
        if params.get("dataset_sink_mode") and params.get("batch_num", 1) > 1:
            notes.append(_SINK_NOTE)
        return reasons, notes
