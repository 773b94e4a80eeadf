"""Training is untouched: losses and final weights are bit-identical with the Monitor on and off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn, ops = ms.nn, ms.ops

from mindspore.train import Callback  # noqa: E402

from monitor_core import Model, Monitor, load_monitor_logs  # noqa: E402
from monitor_core.config import EXPORT_OPTIONS  # noqa: E402

STEPS, BATCH = 8, 8


def mlp() -> tuple[Any, np.ndarray]:
    net = nn.SequentialCell(nn.Dense(12, 16), nn.ReLU(), nn.Dense(16, 3))
    return net, np.random.default_rng(0).normal(size=(STEPS * BATCH, 12)).astype(np.float32)


def conv() -> tuple[Any, np.ndarray]:
    net = nn.SequentialCell(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dense(4 * 36, 3))
    return net, np.random.default_rng(0).normal(size=(STEPS * BATCH, 1, 6, 6)).astype(np.float32)


class Transformer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Dense(8, 3)

    def construct(self, x: Any) -> Any:
        return self.head(self.layer(x).mean(axis=1))


def transformer() -> tuple[Any, np.ndarray]:
    return Transformer(), np.random.default_rng(0).normal(size=(STEPS * BATCH, 5, 8)).astype(np.float32)


class LossScale(nn.TrainOneStepWithLossScaleCell):
    """The loss-scale cell with an overflow check that has CPU kernels."""

    def get_overflow_status(self, status: Any, compute_output: Any) -> Any:
        bad = ops.zeros((), ms.float32)
        for gradient in compute_output:
            bad = bad + ops.ReduceSum()(ops.cast(ops.logical_not(ops.isfinite(gradient)), ms.float32))
        return bad > 0


def grouped(parameters: list[Any]) -> Any:
    half = len(parameters) // 2
    groups = [
        {"params": parameters[:half], "lr": 0.02},
        {"params": parameters[half:], "lr": nn.ExponentialDecayLR(0.01, 0.9, 3)},
    ]
    return nn.Adam(groups, learning_rate=0.01)


OPTIMIZERS = {
    "adam": lambda p: nn.Adam(p, 0.01),
    "adamw": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "momentum": lambda p: nn.Momentum(p, 0.05, 0.9),
    "list": lambda p: nn.Momentum(p, [0.01 * (i + 1) for i in range(2 * STEPS)], 0.9),
    "cell": lambda p: nn.Adam(p, nn.CosineDecayLR(0.001, 0.05, STEPS)),
    "grouped": grouped,
}
#: Every net, every optimizer and the loss-scale cell, each in both modes.
CASES = [
    ("mlp", mlp, "adam", None), ("mlp", mlp, "list", None), ("mlp", mlp, "cell", None), ("mlp", mlp, "grouped", None),
    ("conv", conv, "momentum", None), ("transformer", transformer, "adamw", None),
    ("mlp", mlp, "adam", 1024.0), ("transformer", transformer, "momentum", 2.0**127),
]  # fmt: skip

EVERYTHING = dict.fromkeys(EXPORT_OPTIONS, True)


class Losses(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        outputs = run_context.original_args().net_outputs
        self.seen.append(float((outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()))


def train(
    make: Any, optimizer: str, scale: float | None, monitor: Monitor | None
) -> tuple[list[float], list[np.ndarray]]:
    ms.set_seed(3)
    np.random.seed(3)
    net, x = make()
    y = (np.abs(x.reshape(len(x), -1)[:, 0] * 2).astype(np.int32)) % 3
    step = OPTIMIZERS[optimizer](net.trainable_params())
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    if scale is None:
        model = Model(net, loss, step, monitor=monitor)
    else:
        cell = nn.DynamicLossScaleUpdateCell(scale, 2, 4)
        model = Model(LossScale(nn.WithLossCell(net, loss), step, cell), monitor=monitor)
    losses = Losses()
    model.train(2, msd.NumpySlicesDataset((x, y), shuffle=False).batch(BATCH), callbacks=[losses])
    return losses.seen, [parameter.asnumpy().copy() for parameter in net.get_parameters()]


@pytest.mark.parametrize(
    ("name", "make", "optimizer", "scale", "options"),
    [(*case, {}) for case in CASES] + [(*case, EVERYTHING) for case in CASES[:1] + CASES[5:]],
    ids=lambda value: "everything" if value is EVERYTHING else None,
)
def test_losses_and_weights_are_bit_identical(
    mode: str, tmp_path: Path, name: str, make: Any, optimizer: str, scale: float | None, options: dict[str, bool]
) -> None:
    without, weights = train(make, optimizer, scale, None)
    monitor = Monitor(log_dir=tmp_path, collect_freq=3, export_options=options, responses=[])
    with_monitor, watched = train(make, optimizer, scale, monitor)
    assert monitor.hook_errors == {}
    assert np.array_equal(without, with_monitor, equal_nan=True)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(weights, watched, strict=True))
    df = load_monitor_logs(tmp_path)
    assert len(df) == 2 * STEPS
    assert np.array_equal(df["loss"], with_monitor, equal_nan=True)
    if scale is not None:
        assert set(df["overflow"]) <= {0.0, 1.0}
        assert (df["overflow"] == 1).any() == (scale > 1e30)
        assert df.loc[df["overflow"] == 1, "grad_norm"].isna().all(), "the optimizer was not called: no norm"
    called = df["overflow"] != 1 if scale is not None else df["step"] > 0
    assert df.loc[called, "grad_norm"].notna().all()
    # At 2**127 MindSpore's own unscaling flushes every gradient to zero: zero is then the measured norm.
    assert (df.loc[called, "grad_norm"] > 0).all() or scale == 2.0**127


def test_a_disabled_monitor_leaves_the_model_alone(mode: str, tmp_path: Path) -> None:
    monitor = Monitor(enable=False, log_dir=tmp_path / "none")
    train(mlp, "adam", None, monitor)
    assert not (tmp_path / "none").exists()
