"""Make the sample runs again, from real MindSpore trainings on CPU with the Monitor: python sample_logs/make_sample_logs.py

Needs MindSpore (pip install '.[mindspore]'); takes a few minutes. Each run has a fixed seed. What names this machine (host,
absolute paths, process number) is taken out of run.json afterwards; nothing else is touched.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as msd
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

from monitor_core import Model, Monitor

HERE = Path(__file__).resolve().parent
SAMPLES, CLASSES, FEATURES, BATCH = 6400, 4, 32, 64


def blobs(seed: int, spread: float = 2.0, wrong: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Four overlapping clouds of points, some with a wrong label, so that the loss levels off well above zero."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLASSES, FEATURES))
    labels = rng.integers(0, CLASSES, SAMPLES).astype(np.int32)
    points = (centres[labels] + spread * rng.normal(size=(SAMPLES, FEATURES))).astype(np.float32)
    mistaken = rng.random(SAMPLES) < wrong
    labels[mistaken] = rng.integers(0, CLASSES, int(mistaken.sum()))
    return points, labels


def dataset(x: np.ndarray, y: np.ndarray, batch: int = BATCH) -> Any:
    """A shuffled data set; built anew for each training, as MindSpore wants."""
    return msd.NumpySlicesDataset((x, y), shuffle=True).batch(batch, drop_remainder=True)


def mlp(width: int = 256) -> nn.Cell:
    """Two hidden layers."""
    return nn.SequentialCell(
        nn.Dense(FEATURES, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, CLASSES)
    )


def cross_entropy() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def monitor(root: Path, folder: str, name: str, export_format: str, **more: object) -> Monitor:
    return Monitor(log_dir=root / folder, name=name, export_format=export_format, collect_freq=20, responses=[], **more)


class TinyTransformer(nn.Cell):
    """One encoder layer over sequences of tokens; tells which token occurs most often."""

    def __init__(self, tokens: int = 16, length: int = 24, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = ms.Parameter(
            ms.Tensor(np.random.normal(0, 0.02, (1, length, width)).astype(np.float32)), name="place"
        )
        self.layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.head = nn.Dense(width, tokens)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.head(self.layer(self.embed(x) + self.place).mean(axis=1))


def healthy_transformer(root: Path) -> None:
    """A training as it should be: warm-up, then cosine decay."""
    rng = np.random.default_rng(7)
    x = rng.integers(0, 16, (4000, 24)).astype(np.int32)
    favourite = rng.integers(0, 16, 4000)
    x[rng.random(x.shape) < 0.25] = 0
    mask = rng.random(x.shape) < 0.3
    x = np.where(mask, favourite[:, None], x).astype(np.int32)
    wrong = rng.random(4000) < 0.2  # wrong labels, so that the loss levels off above zero as in any real task
    favourite[wrong] = rng.integers(0, 16, int(wrong.sum()))
    steps, peak = 1000, 2e-3
    rates = [peak * min(1, (i + 1) / 60) * 0.5 * (1 + math.cos(math.pi * i / steps)) + 1e-5 for i in range(steps)]
    net = TinyTransformer()
    optimizer = nn.AdamWeightDecay(net.trainable_params(), rates, weight_decay=1e-4)
    watched = monitor(root, "healthy_transformer", "Healthy transformer", "json", max_file_size=100_000)
    Model(net, cross_entropy(), optimizer, monitor=watched).train(10, dataset(x, favourite.astype(np.int32), 40))


def learning_rate_too_high(root: Path) -> None:
    """The rate is right for 250 steps, then it is raised until the loss swings, and on until it is NaN."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = (np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.5 * rng.normal(size=(SAMPLES, 1))).astype(np.float32)
    rates = [0.02] * 250 + [0.02 * 1.011**i for i in range(450)]
    net = nn.SequentialCell(nn.Dense(FEATURES, 256), nn.ReLU(), nn.Dense(256, 256), nn.ReLU(), nn.Dense(256, 1))
    optimizer = nn.Momentum(net.trainable_params(), rates, 0.9)
    watched = monitor(root, "lr_too_high", "Learning rate too high", "csv")
    Model(net, nn.MSELoss(), optimizer, monitor=watched).train(7, dataset(x, y))


class LossScaleOnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's loss-scale cell with an overflow check that the CPU has kernels for; all else is MindSpore's."""

    def get_overflow_status(self, status: ms.Tensor, compute_output: Any) -> ms.Tensor:
        bad = ops.zeros((), ms.float32)
        for gradient in compute_output:
            bad = bad + ops.ReduceSum()(ops.cast(ops.logical_not(ops.isfinite(gradient)), ms.float32))
        return bad > 0


def overflow_storm(root: Path) -> None:
    """Half precision with dynamic loss scaling: single overflows while the scale is probed, then a stretch of corrupt batches."""
    x, y = blobs(2)
    x, y = np.tile(x, (3, 1)), np.tile(y, 3)
    x[20 * 640 : 22 * 640] *= 1e5  # 20 batches that are beyond the range of float16
    net = mlp().to_float(ms.float16)
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    scale = ms.amp.DynamicLossScaleManager(init_loss_scale=2.0**22, scale_factor=2, scale_window=40)
    cell = LossScaleOnCpu(nn.WithLossCell(net, cross_entropy()), optimizer, scale.get_update_cell())
    ordered = msd.NumpySlicesDataset((x, y), shuffle=False).batch(BATCH)
    watched = monitor(root, "overflow_storm", "Overflow storm", "protobuf")
    Model(cell, monitor=watched).train(2, ordered)


class StallingSource:
    """Samples from a disk that is slow now and then."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if index % 2560 in (1400, 1464, 1528, 1592):
            time.sleep(0.25)
        return self.x[index], self.y[index]


def data_loader_stalls(root: Path) -> None:
    x, y = blobs(3)
    source = msd.GeneratorDataset(StallingSource(x, y), ["x", "y"], shuffle=False, python_multiprocessing=False)
    net = mlp()
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    watched = monitor(
        root, "data_loader_stalls", "Data loader stalls", "json", export_options={"include_input_shape": True}
    )
    Model(net, cross_entropy(), optimizer, monitor=watched).train(6, source.batch(BATCH))


def vanishing_gradients(root: Path) -> None:
    """Thirteen sigmoid layers with small weights: nothing arrives at the bottom."""
    x, y = blobs(4)
    layers: list[nn.Cell] = [nn.Dense(FEATURES, 24), nn.Sigmoid()]
    for _ in range(12):
        layers += [nn.Dense(24, 24, weight_init=ms.common.initializer.Normal(0.02)), nn.Sigmoid()]
    body = nn.SequentialCell(*layers)
    net = nn.SequentialCell(body, nn.Dense(24, CLASSES))
    for parameter in list(net.trainable_params())[8:]:
        parameter.requires_grad = False  # only the lower four layers are trained, under a fixed top
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    watched = monitor(root, "vanishing_gradients", "Vanishing gradients", "csv")
    Model(net, cross_entropy(), optimizer, monitor=watched).train(5, dataset(x, y))


class Crash(Callback):
    """The machine fails in mid-training."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.step:
            raise RuntimeError("simulated crash")


def resumed_run(root: Path) -> None:
    """Crashes at step 460; resumed from the checkpoint of step 300, so that steps 301 to 459 stand twice."""
    x, y = blobs(5)
    checkpoint = root / "resumed_run.ckpt"

    class Save(Callback):
        def on_train_epoch_end(self, run_context: Any) -> None:
            params = run_context.original_args()
            if params.cur_epoch_num == 3:
                ms.save_checkpoint(params.train_network, str(checkpoint))

    def training() -> tuple[Model, Any]:
        net = mlp()
        optimizer = nn.Momentum(net.trainable_params(), 0.005, 0.9)
        watched = monitor(root, "resumed_run", "Resumed run", "protobuf")
        model = Model(net, cross_entropy(), optimizer, monitor=watched)
        return model, model._train_network

    model, _ = training()
    try:
        model.train(8, dataset(x, y), callbacks=[Save(), Crash(460)])
    except RuntimeError as error:
        print("as planned:", error)
    time.sleep(1.5)
    model, network = training()
    ms.load_param_into_net(network, ms.load_checkpoint(str(checkpoint)))
    model.train(8, dataset(x, y), initial_epoch=3)
    checkpoint.unlink()


def compare(root: Path) -> None:
    """The same net and data with three optimizers."""
    for name, make in (
        ("sgd", lambda p: nn.SGD(p, 0.05)),
        ("momentum", lambda p: nn.Momentum(p, 0.02, 0.9)),
        ("adam", lambda p: nn.Adam(p, 2e-3)),
    ):
        seed()
        x, y = blobs(6)
        net = mlp()
        watched = monitor(root, f"compare/{name}", f"Compare: {name}", "protobuf")
        Model(net, cross_entropy(), make(net.trainable_params()), monitor=watched).train(4, dataset(x, y))


#: Folder to what fills it.
RUNS: dict[str, Callable[[Path], None]] = {
    "healthy_transformer": healthy_transformer,
    "lr_too_high": learning_rate_too_high,
    "overflow_storm": overflow_storm,
    "data_loader_stalls": data_loader_stalls,
    "vanishing_gradients": vanishing_gradients,
    "resumed_run": resumed_run,
    "compare": compare,
}


def seed() -> None:
    ms.set_seed(1)
    np.random.seed(1)


def scrub(root: Path) -> None:
    """Take this machine's name, paths and process numbers out of the manifests."""
    for path in root.rglob("run.json"):
        manifest = json.loads(path.read_text("utf-8"))
        manifest["config"]["log_dir"] = path.parent.relative_to(root.parent).as_posix()
        manifest["versions"]["platform"] = "Linux"
        for attempt in manifest["attempts"]:
            attempt["host"], attempt["pid"] = "sample", None
            attempt["facts"]["command"], attempt["facts"]["git_commit"] = ["sample_logs/make_sample_logs.py"], None
        path.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=RUNS, help="make only this one")
    parser.add_argument("--into", type=Path, default=HERE, help="directory to fill (default: this one)")
    arguments = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    for folder, make in RUNS.items():
        if arguments.only in (None, folder):
            shutil.rmtree(arguments.into / folder, ignore_errors=True)
            seed()
            make(arguments.into.resolve())
    scrub(arguments.into.resolve())


if __name__ == "__main__":
    main()
