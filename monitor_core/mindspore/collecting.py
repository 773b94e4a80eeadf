"""One finished step to scalars: the collectors together, as the options want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monitor_core.clock import Clock
from monitor_core.collectors.inputs import InputSignatures, batch_samples
from monitor_core.collectors.memory import DeviceMemory, HostUsage
from monitor_core.collectors.outputs import ABSENT_OUTPUTS, collect_outputs
from monitor_core.collectors.timing import StepTimer
from monitor_core.mindspore.environment import device_memory, is_pynative, rank_and_size, synchronize
from monitor_core.mindspore.phases import PhaseTimer
from monitor_core.mindspore.train_step import NO_LAYERS, NO_OPTIMIZER, SKIPPED, TapReader, attach_tap
from monitor_core.record import NO_NESTED

_SINK_NOTE = "data set sink mode: one record covers a whole sink of steps; nothing is interpolated"


class StepCollector:
    """What is measured of the training that it listens to."""

    def __init__(self, clock: Clock) -> None:
        self.timer = StepTimer(clock)
        self._host = HostUsage(clock)
        self._device: DeviceMemory | None = None
        self._phases = PhaseTimer(clock.monotonic, synchronize)
        self._signatures = InputSignatures()
        self._tap: TapReader | None = None
        self._reasons: dict[str, str] = {}

    def listen(self, train_network: Any, options: Mapping[str, bool]) -> None:
        """Put the tap before the network's optimizer and hook its phases, as far as the options want them."""
        self._reasons = {}
        self._device = None
        layers = options["include_layer_grad"]
        if options["include_grad"] or options["include_lr"] or layers:
            self._tap = attach_tap(train_network, with_norm=options["include_grad"], with_layers=layers)
            if self._tap is None:
                self._reasons |= dict.fromkeys(("grad_norm", "learning_rate"), NO_OPTIMIZER)
            elif layers and not self._tap.tap.layers:
                self._reasons["grad_norm/<parameter>"] = NO_LAYERS
        self._reasons |= self._phases.listen(train_network, options, pynative=is_pynative(), ranks=rank_and_size()[1])

    def step_begin(self) -> None:
        """The network runs from now on; what a callback changes after it concerns the next step."""
        self.timer.step_begin()
        self._phases.step_begin()
        if self._tap is not None:
            self._tap.step_begin()

    def leave(self) -> None:
        """Take away what only a running Monitor needs."""
        self._phases.leave()

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
            scalars |= self._tap.collect(
                norm=options["include_grad"], rate=options["include_lr"], layers=options["include_layer_grad"]
            )
        scalars |= self._phases.collect()
        times = self.timer.step_end(batch_samples(element))
        if not options["include_throughput"]:
            times.pop("throughput", None)
        scalars |= times
        if options["include_overflow"] and "overflow" in outputs:
            scalars["overflow"], scalars["loss_scale"] = outputs["overflow"], outputs["loss_scale"]
        scalars |= self.memory(options)
        return scalars, self._inputs(element, scalars) if options["include_input_shape"] else NO_NESTED

    def _inputs(self, element: object, scalars: dict[str, float]) -> Mapping[str, object]:
        """Adds ``input_signature`` to the scalars; gives shapes and types as nested values."""
        signature = self._signatures.of(element)
        if signature is None:
            return NO_NESTED
        scalars["input_signature"] = float(signature.number)
        return signature.nested

    def memory(self, options: Mapping[str, bool]) -> dict[str, float]:
        """Memory of device and process, and CPU use."""
        return self._memory_of_device().collect() | self._host.collect() if options["include_memory"] else {}

    def _memory_of_device(self) -> DeviceMemory:
        """Made when a training runs: the device may be chosen after the Monitor is built."""
        if self._device is None:
            self._device = DeviceMemory(*device_memory())
        return self._device

    def explain(self, params: Mapping[str, Any], options: Mapping[str, bool]) -> tuple[dict[str, str], list[str]]:
        """What cannot be measured in this training and why, and notes for readers; both go to ``run.json``."""
        reasons = dict(self._reasons)
        notes: list[str] = []
        if options["include_memory"]:
            reasons |= self._memory_of_device().absent()
        if options["include_overflow"] and hasattr(params.get("train_network"), "scale_sense"):
            notes.append(SKIPPED)
        elif options["include_overflow"]:
            reasons |= ABSENT_OUTPUTS
        if params.get("dataset_sink_mode") and params.get("batch_num", 1) > 1:
            notes.append(_SINK_NOTE)
        return reasons, notes
