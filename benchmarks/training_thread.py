"""What recording costs a training: python benchmarks/training_thread.py [--steps N] [--rounds N]

Ours and tensorboardX's turns alternate, each in a fresh directory; every figure is the median over the rounds. The
recording path is what runs between two training steps: for us one Recorder.record with 10 scalars, for tensorboardX
ten SummaryWriter.add_scalar.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder

NAMES = (
    "loss", "grad_norm", "step_time", "data_wait_time", "throughput", "learning_rate", "loss_scale", "overflow",
    "memory_peak", "host_memory",
)  # fmt: skip
SCALARS = dict.fromkeys(NAMES, 0.5)
PAUSE_S = 0.0002  # stands for the step itself, so that background threads get their turn as in a training


class Figures:
    """What one turn measured."""

    def __init__(self, step_us: np.ndarray, cpu_us: float, bytes_per_step: float) -> None:
        self.p50, self.p99 = (float(value) for value in np.percentile(step_us, (50, 99)))
        self.cpu, self.bytes = cpu_us, bytes_per_step


def turn(
    steps: int, record: Callable[[int, dict[str, float]], None], finish: Callable[[], None], folder: Path
) -> Figures:
    """Run ``steps`` steps; CPU is that of all threads, less what the pauses themselves cost."""
    took, idle = np.empty(steps), np.empty(steps)
    gc.collect()
    begun = time.process_time()
    for step in range(steps):
        scalars = dict(SCALARS)  # a step's values are new ones; making them is not recording
        start = time.perf_counter_ns()
        record(step, scalars)
        took[step] = (time.perf_counter_ns() - start) / 1000
        time.sleep(PAUSE_S)
    finish()
    cpu = time.process_time() - begun
    begun = time.process_time()
    for step in range(steps):
        start = time.perf_counter_ns()
        idle[step] = (time.perf_counter_ns() - start) / 1000
        time.sleep(PAUSE_S)
    cpu -= time.process_time() - begun
    size = sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".jsonl" and path.name != "run.json"
    )
    return Figures(took, cpu / steps * 1e6, size / steps)


def ours(export_format: str, steps: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        config = from_mapping({"log_dir": folder, "name": "benchmark", "export_format": export_format})
        recorder = Recorder(config)
        recorder.open()
        return turn(
            steps, lambda step, scalars: recorder.record(step, 1, scalars), lambda: _close(recorder), Path(folder)
        )


def _close(recorder: Recorder) -> None:
    recorder.close()


def tensorboardx(steps: int) -> Figures | None:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(folder)

        def record(step: int, scalars: dict[str, float]) -> None:
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)

        return turn(steps, record, writer.close, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    turns: dict[str, Callable[[], Figures | None]] = {
        f"msmon {name}": lambda name=name: ours(name, arguments.steps) for name in ("json", "csv", "protobuf")
    }
    turns["tensorboardX"] = lambda: tensorboardx(arguments.steps)
    found: dict[str, list[Figures]] = {name: [] for name in turns}
    for _ in range(arguments.rounds):
        for name, run in turns.items():
            figures = run()
            if figures is not None:
                found[name].append(figures)
    show(found, arguments.steps, arguments.rounds)


def show(found: dict[str, list[Figures]], steps: int, rounds: int) -> None:
    print(f"10 scalars per step, {steps} steps, median of {rounds} alternating rounds, {os.cpu_count()} cores")
    print(f"{'':18}{'p50 us':>9}{'p99 us':>9}{'CPU us':>9}{'bytes':>8}{'p50 of tensorboardX':>21}")
    medians = {
        name: [statistics.median(getattr(one, field) for one in rounds_) for field in ("p50", "p99", "cpu", "bytes")]
        for name, rounds_ in found.items() if rounds_
    }  # fmt: skip
    peer = medians.get("tensorboardX")
    for name, (p50, p99, cpu, size) in medians.items():
        ratio = f"1 / {peer[0] / p50:.0f}" if peer and name != "tensorboardX" else ""
        print(f"{name:18}{p50:9.2f}{p99:9.2f}{cpu:9.1f}{size:8.0f}{ratio:>21}")
    if peer is None:
        print("tensorboardX is not installed: pip install 'msmon[dev]' to see it beside ours")


if __name__ == "__main__":
    main()
