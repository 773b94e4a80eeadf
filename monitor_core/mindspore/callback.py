"""``Monitor``: the callback that users hand to ``Model.train``.

    on_train_begin . (epoch_begin . (step_begin . network . step_end)* . [evaluation . on_eval_end] . epoch_end)* . on_train_end

Every hook is guarded: whatever goes wrong inside is logged once, counted, and never reaches the training.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import mindspore
from mindspore.train import Callback

from monitor_core.clock import SystemClock
from monitor_core.config import MonitorConfig, check_live_change, from_mapping
from monitor_core.config_file import read_config_file
from monitor_core.detectors import Finding
from monitor_core.detectors.texts import one_line
from monitor_core.mindspore.collecting import StepCollector
from monitor_core.mindspore.config_view import ConfigView
from monitor_core.mindspore.environment import parameters_of, rank_and_size, steps_before, user_language
from monitor_core.mindspore.evaluation import evaluated
from monitor_core.mindspore.facts import training_facts
from monitor_core.mindspore.own_loop import OwnLoop, OwnStep
from monitor_core.mindspore.silence import watch
from monitor_core.monitor import FlushReceipt, Recorder
from monitor_core.verify import Attached, report, verify

_log = logging.getLogger("msmon")
_Hook = TypeVar("_Hook", bound=Callable[..., Any])


def _guarded(hook: _Hook) -> _Hook:
    """Training first: an error in a hook is logged once per kind and counted, and the training goes on."""

    @functools.wraps(hook)
    def run(self: Monitor, *args: Any) -> Any:
        try:
            return hook(self, *args)
        except Exception as error:  # noqa: BLE001 - the boundary that protects training from the monitor
            self._failed(hook.__name__, error)
            return None

    return run  # type: ignore[return-value]


class Monitor(OwnLoop, Callback):  # type: ignore[misc]  # MindSpore has no type information
    """Records every training step; see the twelve fields of ``monitor_config`` in README.

    ``Model(..., monitor=monitor)`` or ``model.train(..., callbacks=[monitor])``. Losses and weights of the training stay
    bit-identical. Raises ConfigError (listing every problem) or LogDirError when it is built, never later.
    """

    def __init__(self, **monitor_config: object) -> None:
        super().__init__()
        self._settings = from_mapping(monitor_config)
        self._clock = SystemClock()
        self._recorder: Recorder | None = None
        self._collector = StepCollector(self._clock)
        self._listening: Any = None
        self._stop: Finding | None = None
        self._stopped = False
        self._steps_before: int | None = None
        self._last_step = 0
        self._entered: list[bool] = []
        self._step_open = False
        self._hook_errors: dict[str, int] = {}
        if self._settings.enable:
            self._recorder = self._build()
            print(f"msmon: writing to {self._recorder.directory}")
            watch(self)

    @classmethod
    def from_config(cls, path: str | Path) -> Monitor:
        """A Monitor from the ``monitor_config`` table of a TOML, YAML or JSON file."""
        return cls(**read_config_file(path))

    @property
    def config(self) -> MonitorConfig:
        """The configuration in force; frozen."""
        return self._settings

    @property
    def _config(self) -> ConfigView:
        """The article's spelling: item assignment is ``reconfigure``."""
        return ConfigView(self)

    @property
    def silence(self) -> str | None:
        """Why an enabled Monitor has recorded nothing so far, in words; None when it has, or is disabled."""
        if self._recorder is None or self._recorder.started:
            return None
        if self._listening is None:
            return (
                "it was given to no training: use Model(..., monitor=monitor) or model.train(..., callbacks=[monitor])"
            )
        return (
            "its hooks are bound but never fired: Model.train() did not run; a hand-written loop needs "
            "'with monitor.step(step, loss=..., grads=...)'"
        )

    @property
    def hook_errors(self) -> Mapping[str, int]:
        """Hook name to how often it failed (and was kept from the training)."""
        return dict(self._hook_errors)

    def reconfigure(self, **changes: object) -> None:
        """Change fields; takes effect at the next step. Raises ConfigError for a wrong value.

        While a training runs, the fields that decide about its files (``log_dir``, ``export_format``, ...) cannot change.
        """
        new, old = self._settings.replace(**changes), self._settings
        running = self._recorder is not None and self._recorder.is_open
        if running:
            check_live_change(old, new)
        self._settings = new
        if running and self._recorder is not None:
            self._recorder.apply(new)
        elif new != old:
            self._recorder = self._build() if new.enable else None

    def register_hooks(self, train_network: Any) -> None:
        """Bind the four hooks to a train network (``train_network.hook_list``) and put the tap before its optimizer.

        ``Model`` and ``on_train_begin`` call it; a disabled Monitor binds none.
        """
        train_network.hook_list = []
        if not self._settings.enable:
            return
        train_network.hook_list = [
            self.on_train_step_begin,
            self.on_train_step_end,
            self.on_train_epoch_begin,
            self.on_train_epoch_end,
        ]
        self._collector.listen(train_network, self._settings.export_options)
        self._listening = train_network

    @_guarded
    def on_train_begin(self, run_context: Any) -> None:
        """Claim an attempt and start recording."""
        if self._recorder is None:
            return
        self._stop, self._stopped, self._steps_before = None, False, None
        params = parameters_of(run_context)
        network = params.get("train_network")
        if network is not None:
            self.register_hooks(network)
        self._recorder.open(len(network.hook_list) if network is not None else 0, training_facts(params))
        self._recorder.explain(*self._collector.explain(params, self._settings.export_options))

    @_guarded
    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Data of a new epoch is fetched from now on."""
        self._collector.timer.epoch_begin()
        if self._steps_before is None:
            self._steps_before = steps_before(parameters_of(run_context))

    @_guarded
    def on_train_step_begin(self, run_context: Any) -> None:
        """The network runs from now on."""
        self._step_open = True
        self._collector.step_begin()

    @_guarded
    def on_train_step_end(self, run_context: Any) -> None:
        """One record. Takes a RunContext, or a bare ``_InternalCallbackParam`` when called by hand."""
        if self._recorder is None or not self._settings.enable:
            return
        if self._entered and not self._step_open:
            return  # listed twice in callbacks: the step has its record
        self._step_open = False
        params = parameters_of(run_context)
        if not self._recorder.is_open:
            if self._listening is None and params.get("train_network") is not None:
                self.register_hooks(params["train_network"])
            self._recorder.open(len(getattr(self._listening, "hook_list", ())))
        scalars, nested = self._collector.collect(params, self._settings.export_options)
        step, epoch = int(params.get("cur_step_num", 0)) + (self._steps_before or 0), params.get("cur_epoch_num")
        self._recorder.record(step, epoch, scalars, nested)
        self._last_step = step
        if self._settings.debug:
            print(f"msmon: step {step} " + " ".join(f"{name}={value:.6g}" for name, value in scalars.items()))
        if self._stop is not None and not self._stopped and not isinstance(run_context, dict):
            self._stopped = True
            run_context.request_stop()

    @_guarded
    def on_train_epoch_end(self, run_context: Any) -> None:
        """The fourth hook of the contract; what an epoch ends with is in its steps' records."""

    @_guarded
    def on_train_end(self, run_context: Any) -> None:
        """Everything on disk, and the run's status in ``run.json``."""
        asked = None if isinstance(run_context, dict) else run_context.get_stop_requested
        if self._stopped and self._stop is not None:
            self._close("stopped", f"msmon: {self._stop.kind} at step {self._stop.first_step}")
        elif asked is not None and asked():
            self._close("stopped", "request_stop")
        else:
            self._close("finished", None)

    @_guarded
    def on_eval_end(self, run_context: Any) -> None:
        """One record of what an evaluation inside ``fit`` found; an evaluation on its own is no training."""
        if self._recorder is None or not self._settings.enable or not self._recorder.is_open:
            return
        params = parameters_of(run_context)
        found = evaluated(params)
        if found.scalars:
            self._recorder.record(self._last_step, params.get("cur_epoch_num"), found.scalars)
        self._recorder.explain(found.absent, found.notes)

    def __enter__(self) -> Monitor:
        """MindSpore enters callbacks for a training, and again for each evaluation inside it."""
        self._entered.append(self._recorder is not None and self._recorder.is_open)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """MindSpore leaves callbacks through here also when training raises."""
        self._leave(kind)

    @_guarded
    def _leave(self, kind: type[BaseException] | None) -> None:
        inside = bool(self._entered) and self._entered.pop()
        if kind is None and not inside:  # what it was inside of goes on: a training, or a hand-written loop
            self._close("finished", None)
        elif kind is not None:
            self._close("failed" if issubclass(kind, Exception) else "stopped", kind.__name__)

    @_guarded
    def _own_step(self, step: int, epoch: int | None, own: OwnStep) -> None:
        if self._recorder is None or not self._settings.enable:
            return
        self._recorder.open()
        options = self._settings.export_options
        scalars = own.scalars(with_loss=options["include_loss"], with_norm=options["include_grad"])
        self._last_step = int(step)
        self._recorder.record(self._last_step, epoch, scalars | self._collector.memory(options))

    def flush(self, *, durable: bool = False) -> FlushReceipt:
        """Wait until every record so far is in the files; the receipt says up to which ``seq``."""
        return self._recorder.flush(durable=durable) if self._recorder else FlushReceipt(-1, False, 0)

    def verify(self, model: Any = None) -> bool:
        """The four layers of the article for this Monitor, printed with cause and fix; whether all passed.

        ``model``: the Model it was given to; without it the second layer is judged by ``run.json``.
        """
        self.flush()
        layers = verify(self._settings.log_dir, None if model is None else self._attached(model))
        print(report(layers, user_language()))
        return all(layer.passed for layer in layers)

    def _attached(self, model: Any) -> Attached:
        network = getattr(model, "_train_network", None)
        reached = getattr(model, "_monitor", None) is self or (network is not None and self._listening is network)
        return Attached(reached, len(getattr(network, "hook_list", ())), self._settings.enable)

    def close(self) -> None:
        """End recording; for loops that have no ``on_train_end``."""
        self._close("finished", None)

    def _close(self, status: Any, reason: str | None) -> None:
        self._collector.leave()
        if self._recorder is not None:
            self._recorder.close(status, reason)

    def _build(self) -> Recorder:
        rank, world_size = rank_and_size()
        return Recorder(
            self._settings,
            rank=rank,
            world_size=world_size,
            versions={"mindspore": mindspore.__version__},
            on_finding=self._found,
            clock=self._clock,
        )

    def _found(self, finding: Finding) -> None:
        """Called in the recorder's thread."""
        if "log" in self._settings.responses:
            _log.warning("%s", one_line(finding, user_language()))
        if "stop" in self._settings.responses and finding.severity != "info":
            self._stop = self._stop or finding

    def _failed(self, hook: str, error: Exception) -> None:
        count = self._hook_errors.get(hook, 0)
        self._hook_errors[hook] = count + 1
        if count == 0:
            text = "%s failed and the training goes on without it: %s: %s (said once; monitor.hook_errors counts)"
            _log.error(text, hook, type(error).__name__, error)
