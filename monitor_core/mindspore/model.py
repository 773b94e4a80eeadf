"""MindSpore's Model with the article's ``monitor=`` argument."""

from __future__ import annotations

from typing import Any

from mindspore.train import Model as StockModel

from monitor_core.mindspore.callback import Monitor


class Model(StockModel):  # type: ignore[misc]  # MindSpore has no type information
    """``mindspore.train.Model`` that takes a Monitor and gives it to every training.

    All other arguments are MindSpore's. The stock Model works too: ``model.train(n, dataset, callbacks=[monitor])``.
    """

    def __init__(
        self,
        network: Any,
        loss_fn: Any = None,
        optimizer: Any = None,
        *args: Any,
        monitor: Monitor | None = None,
        **kwargs: Any,
    ) -> None:
        """Raises TypeError when ``monitor`` is a dict: write ``Monitor(**cfg)``."""
        if isinstance(monitor, dict):
            raise TypeError("monitor: got a dict, expected a Monitor; write Model(..., monitor=Monitor(**cfg))")
        if monitor is not None and not isinstance(monitor, Monitor):
            raise TypeError(f"monitor: got {type(monitor).__name__}, expected a monitor_core.Monitor or None")
        super().__init__(network, loss_fn, optimizer, *args, **kwargs)
        self._monitor = monitor
        if monitor is not None:
            monitor.register_hooks(self._train_network)

    def train(
        self,
        epoch: int,
        train_dataset: Any = None,
        callbacks: Any = None,
        *args: Any,
        dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        """As MindSpore's; ``dataset`` is the article's name for ``train_dataset``."""
        if (train_dataset is None) == (dataset is None):
            raise TypeError(
                "Model.train: expected one data set, as train_dataset (MindSpore's name) or dataset (the article's)"
            )
        data = dataset if train_dataset is None else train_dataset
        super().train(epoch, data, callbacks=self._with_monitor(callbacks), **_named(_TRAIN_REST, args, kwargs))

    def fit(self, epoch: int, train_dataset: Any, valid_dataset: Any = None, valid_frequency: Any = 1, callbacks: Any = None,
            *args: Any, **kwargs: Any) -> None:  # fmt: skip
        """As MindSpore's."""
        super().fit(
            epoch, train_dataset, valid_dataset, valid_frequency, callbacks=self._with_monitor(callbacks),
            **_named(_FIT_REST, args, kwargs),
        )  # fmt: skip

    def _with_monitor(self, callbacks: Any) -> Any:
        """The callbacks with the monitor last, so that what other callbacks do is not taken for waiting on data."""
        if self._monitor is None:
            return callbacks
        given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
        return given if self._monitor in given else [*given, self._monitor]


_TRAIN_REST = ("dataset_sink_mode", "sink_size", "initial_epoch")
_FIT_REST = ("dataset_sink_mode", "valid_dataset_sink_mode", "sink_size", "initial_epoch")


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Positional arguments behind ``callbacks`` by their names: MindSpore looks for callbacks among the named ones only."""
    if len(args) > len(names):
        raise TypeError(f"too many positional arguments: expected at most {', '.join(names)} behind callbacks")
    return dict(zip(names, args, strict=False)) | kwargs
