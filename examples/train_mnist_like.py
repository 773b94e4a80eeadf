"""A live training to watch: a small convolutional net on generated pictures of digits, slow enough to follow.

    msmon-dash --logdir logs                  (first terminal)
    python examples/train_mnist_like.py       (second terminal)

Needs MindSpore: pip install ".[mindspore]". Nothing is downloaded; the pictures are drawn with numpy.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import mindspore as ms
import mindspore.dataset as msd
import numpy as np
from mindspore import nn, ops
from mindspore.train import Callback

from monitor_core import Model, Monitor

SIDE, DIGITS = 28, 10
#: Seven-segment digits: which of top, upper left, upper right, middle, lower left, lower right, bottom are lit.
SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)


def draw(digit: int, rng: np.random.Generator) -> np.ndarray:
    """One noisy picture of a digit, shape (1, 28, 28), values about 0 to 1."""
    picture = np.zeros((SIDE, SIDE), np.float32)
    left, top = rng.integers(6, 11), rng.integers(3, 8)
    width, height = rng.integers(8, 11), rng.integers(7, 9)
    lit = [mark == "1" for mark in SEGMENTS[digit]]
    bars = ((0, 0, 0, width), (0, 0, height, 0), (0, width, height, 0), (height, 0, 0, width),
            (height, 0, height, 0), (height, width, height, 0), (2 * height, 0, 0, width))  # fmt: skip
    for on, (down, right, tall, wide) in zip(lit, bars, strict=True):
        if on:
            picture[top + down : top + down + tall + 2, left + right : left + right + wide + 2] = 1.0
    return (picture + rng.normal(0, 0.35, picture.shape)).astype(np.float32)[None]


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``count`` pictures with their digits, one in ten with a wrong one."""
    rng = np.random.default_rng(seed)
    digits = rng.integers(0, DIGITS, count)
    images = np.stack([draw(int(digit), rng) for digit in digits])
    wrong = rng.random(count) < 0.1
    digits[wrong] = rng.integers(0, DIGITS, int(wrong.sum()))
    return images, digits.astype(np.int32)


class Convolutional(nn.Cell):
    """Two convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.SequentialCell(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Flatten(), nn.Dense(16 * 7 * 7, 64), nn.ReLU(), nn.Dense(64, DIGITS),
        )  # fmt: skip

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.body(x)


class LossScaleOnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's loss-scale cell with an overflow check that the CPU has kernels for; on Ascend and GPU use the cell itself."""

    def get_overflow_status(self, status: ms.Tensor, compute_output: Any) -> ms.Tensor:
        bad = ops.zeros((), ms.float32)
        for gradient in compute_output:
            bad = bad + ops.ReduceSum()(ops.cast(ops.logical_not(ops.isfinite(gradient)), ms.float32))
        return bad > 0


class Slowly(Callback):
    """Waits a little after each step, so that a person can watch; the wait counts as part of the step."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s

    def on_train_step_end(self, run_context: Any) -> None:
        time.sleep(self.delay_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--delay-ms", type=float, default=40, help="pause after each step")
    parser.add_argument("--log-dir", default="./logs/mnist_like")
    parser.add_argument("--format", choices=("json", "csv", "protobuf"), default="json")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--loss-scale", action="store_true", help="half precision with dynamic loss scaling: overflows to watch"
    )
    arguments = parser.parse_args()

    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    ms.set_seed(arguments.seed)
    images, digits = pictures(3200, arguments.seed)
    dataset = msd.NumpySlicesDataset((images, digits), shuffle=True).batch(32, drop_remainder=True)
    network = Convolutional()
    monitor = Monitor(
        name="mnist-like", log_dir=arguments.log_dir, collect_freq=10, export_format=arguments.format,
        export_options={"include_input_shape": True},
    )  # fmt: skip
    print("watch it with: msmon-dash --logdir logs")
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Adam(network.trainable_params(), arguments.learning_rate)
    if arguments.loss_scale:
        network.to_float(ms.float16)
        scale = ms.amp.DynamicLossScaleManager(init_loss_scale=2.0**22, scale_factor=2, scale_window=25)
        cell = LossScaleOnCpu(nn.WithLossCell(network, loss), optimizer, scale.get_update_cell())
        model = Model(cell, monitor=monitor)
    else:
        model = Model(network, loss, optimizer, monitor=monitor)
    model.train(arguments.epochs, dataset, callbacks=[Slowly(arguments.delay_ms / 1000)])
    print(f"done; the records are in {monitor.config.log_dir}")


if __name__ == "__main__":
    main()
