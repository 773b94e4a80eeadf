"""What a whole Monitor costs a training: python benchmarks/whole_monitor.py [--mode GRAPH|PYNATIVE] [--rounds N] [--steps N]

The transformer of sample_logs is trained alone, with the Monitor (tap, hooks, files), LossMonitor(1), SummaryCollector(collect_freq=1)
and a callback that hands ten scalars to tensorboardX. All trainings live in one process and take turns of some steps, so that each turn
is compared with those of the bare training in the same round; each variant has several networks, because two equal ones differ by
some percent. Printed are medians over the rounds. "no callback again" shows what is noise. Needs MindSpore.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, LossMonitor, SummaryCollector
from mindspore.train import Model as StockModel

from monitor_core import Monitor

sys.path.insert(0, str(Path(__file__).parents[1] / "sample_logs"))
from make_sample_logs import TinyTransformer, cross_entropy, dataset

BATCH = 40


class Clock(Callback):  # type: ignore[misc]  # MindSpore has no type information
    """When each step ended; first in the list, so that what the others do falls between two of its marks."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        self.ends.append(time.perf_counter())


class TensorBoardX(Callback):  # type: ignore[misc]  # MindSpore has no type information
    """Ten scalars per step through tensorboardX, as a user would write it."""

    def __init__(self, folder: str) -> None:
        from tensorboardX import SummaryWriter

        super().__init__()
        self.writer = SummaryWriter(folder)

    def on_train_step_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        loss = float(params.net_outputs.asnumpy())
        for number in range(10):
            self.writer.add_scalar(f"metric_{number}", loss, params.cur_step_num)


def variants(folder: Path) -> dict[str, Callable[[], list[Any]]]:
    return {
        "no callback": list,
        "no callback again": list,
        "Monitor()": lambda: [Monitor(log_dir=folder / "msmon", name="benchmark", responses=[])],
        "LossMonitor(1)": lambda: [LossMonitor(1)],
        "tensorboardX": lambda: [TensorBoardX(str(folder / "tensorboardx"))],
        "SummaryCollector(1)": lambda: [SummaryCollector(str(folder / "summary"), collect_freq=1)],
    }


class Training:
    """One network with its callbacks; trains some steps per turn."""

    def __init__(self, callbacks: list[Any]) -> None:
        ms.set_seed(1)
        np.random.seed(1)
        net = TinyTransformer()
        self.model = StockModel(net, cross_entropy(), nn.AdamWeightDecay(net.trainable_params(), 1e-3))
        self.callbacks = callbacks

    def turn(self, steps: int) -> float:
        """Mean seconds per step: what runs in background threads counts too."""
        tokens = np.random.default_rng(7).integers(0, 16, (BATCH * steps, 24)).astype(np.int32)
        clock = Clock()
        with contextlib.redirect_stdout(io.StringIO()):
            self.model.train(
                1, dataset(tokens, tokens[:, 0].copy(), BATCH), [clock, *self.callbacks], dataset_sink_mode=False
            )
        return float(np.mean(np.diff(clock.ends)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("GRAPH", "PYNATIVE"), default="GRAPH")
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--copies", type=int, default=3, help="networks per variant: two of the same differ by some percent"
    )
    parser.add_argument("--only", nargs="*", help="names of variants beside 'no callback'")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    ms.set_context(mode=getattr(ms, f"{arguments.mode}_MODE"), device_target="CPU")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        trainings = [
            (name, Training(build()))
            for copy in range(arguments.copies)
            for name, build in variants(Path(folder) / str(copy)).items()
            if name == "no callback" or not arguments.only or name in arguments.only
        ]
        for _, training in trainings:
            training.turn(arguments.steps)  # compiles
        took: dict[str, list[float]] = {name: [] for name, _ in trainings}
        order = random.Random(0)
        for _ in range(arguments.rounds):
            order.shuffle(trainings)  # in a fixed order one would always follow the same neighbour
            now: dict[str, list[float]] = {name: [] for name in took}
            for name, training in trainings:
                now[name].append(training.turn(arguments.steps))
            for name, times in now.items():
                took[name].append(statistics.mean(times))
        show(took, arguments)


def show(took: dict[str, list[float]], arguments: argparse.Namespace) -> None:
    turns = f"{arguments.rounds} alternating rounds of {arguments.steps} steps"
    print(f"sample transformer, {arguments.mode} mode, {turns}, {os.cpu_count()} cores")
    print(f"{'':22}{'ms per step':>12}{'more than without':>20}{'middle half':>20}")
    bare = took["no callback"]
    for name, times in took.items():
        ratios = sorted(100 * (one / other - 1) for one, other in zip(times, bare, strict=True))
        quarter = len(ratios) // 4
        more = f"{statistics.median(ratios):+.1f} %" if name != "no callback" else ""
        spread = f"{ratios[quarter]:+.1f} to {ratios[-1 - quarter]:+.1f} %" if name != "no callback" else ""
        print(f"{name:22}{1000 * statistics.median(times):12.2f}{more:>20}{spread:>20}")


if __name__ == "__main__":
    main()
