"""Writes docs/metrics.md from real trainings: python docs/make_metrics_table.py [--only COLUMN ...] [--into FILE]

Each column is a training on this machine's MindSpore with every export option on: what was recorded counts as measured, and for what was
not the reason is taken from its run.json. Columns with two ranks are started by MindSpore's launcher.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COLUMNS = {
    f"{mode} {setup}".strip(): (mode, setup)
    for mode in ("GRAPH", "PYNATIVE")
    for setup in ("", "sink", "amp auto", "amp O2", "loss scale", "2 ranks")
}
#: Metric -> unit and meaning; the order is that of the table. What a training records beyond these is added at the end.
METRICS = {
    "loss": ("", "mean of the loss that the step cell returns"),
    "grad_norm": ("", "L2 norm of all gradients, unscaled, before clipping and optimizer"),
    "grad_norm/<parameter>": ("", "the same for each parameter; `include_layer_grad`"),
    "learning_rate": ("", "of the step; further groups are `learning_rate/group_1` and so on"),
    "loss_scale": ("", "of the step's loss-scale cell"),
    "overflow": ("0 or 1", "whether the loss-scale cell found an overflow"),
    "step_time": ("s", "from the end of the step before (or the epoch's begin) to this step's end"),
    "data_wait_time": ("s", "its part before the network ran: waiting for data"),
    "forward_time": ("s", "of the network's forward pass; `include_phase_time`"),
    "backward_time": ("s", "from the end of the forward pass to the last gradient; `include_phase_time`"),
    "throughput": ("samples/s", "batch size by step time"),
    "comm_bytes": ("bytes", "handed to AllReduce by this rank in the step; `include_comm`"),
    "comm_time": ("s", "of reducing the gradients over the ranks; `include_comm`"),
    "comm_bandwidth": ("bytes/s", "`comm_bytes` by `comm_time`"),
    "memory_peak": ("bytes", "most device memory allocated so far"),
    "memory_allocated": ("bytes", "device memory allocated now"),
    "host_memory": ("bytes", "resident memory of the process"),
    "cpu_percent": ("%", "CPU use of the process, 100 is one core; at most every 0.5 s"),
    "input_signature": ("", "number of the distinct set of input shapes and types; `include_input_shape`"),
    "input_shapes": ("nested", "shape of each input tensor (json and protobuf); `include_input_shape`"),
}


@dataclass
class Column:
    """What one training gave."""

    measured: set[str] = field(default_factory=set)
    absent: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    """What MindSpore said when it refused the set-up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "metrics.md")
    parser.add_argument("--measure", nargs=3, metavar=("MODE", "SETUP", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        train(*arguments.measure)
        return
    arguments.into.write_text(page({name: column(*COLUMNS[name]) for name in arguments.only}), "utf-8")


def column(mode: str, setup: str) -> Column:
    """Train in a process of its own: modes and parallel contexts are for good."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = launcher(folder) if setup == "2 ranks" else [sys.executable, __file__]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*command, "--measure", mode, setup, str(run)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if (Path(folder) / "refused").is_file():
            return Column(refused=(Path(folder) / "refused").read_text("utf-8"))
        if done.returncode:
            raise SystemExit(f"{mode} {setup}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return read(run)


def launcher(folder: str) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    beside = Path(sys.executable).parent
    found = shutil.which("msrun", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    return [
        found or "msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--bind_core=False", "--join=True",
        f"--log_dir={folder}/launcher", __file__,
    ]  # fmt: skip


def read(run: Path) -> Column:
    from monitor_core import load_monitor_logs

    manifest = json.loads((run / "run.json").read_text("utf-8"))
    found: set[str] = set()
    for name in load_monitor_logs(run).columns:
        found.add("grad_norm/<parameter>" if name.startswith("grad_norm/") else name)
    return Column(found, manifest["absent"])


def train(mode: str, setup: str, folder: str) -> None:
    import mindspore as ms
    import numpy as np
    from mindspore import nn
    from mindspore.dataset import NumpySlicesDataset

    from monitor_core import Model, Monitor
    from monitor_core.config import EXPORT_OPTIONS

    logging.disable(logging.WARNING)
    ms.set_context(mode=getattr(ms, f"{mode}_MODE"), device_target="CPU")
    if setup == "2 ranks":
        from mindspore.communication import init

        init()
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=2)
    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    data = NumpySlicesDataset((x, x[:, :1].copy()), shuffle=False).batch(8)
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    monitor = Monitor(log_dir=folder, name="table", export_options=dict.fromkeys(EXPORT_OPTIONS, True), responses=[])
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if setup == "loss scale":
                sys.path.insert(0, str(ROOT / "sample_logs"))
                from make_sample_logs import LossScaleOnCpu

                cell = nn.DynamicLossScaleUpdateCell(1024.0, 2, 4)
                model: Any = Model(LossScaleOnCpu(nn.WithLossCell(net, nn.MSELoss()), optimizer, cell), monitor=monitor)
            else:
                amp: dict[str, Any] = {"amp_level": setup.removeprefix("amp ")} if setup.startswith("amp") else {}
                if setup == "amp O2":
                    amp["loss_scale_manager"] = None  # MindSpore's own choice, dynamic loss scaling, is refused on CPU
                model = Model(net, nn.MSELoss(), optimizer, monitor=monitor, **amp)
            model.train(1, data, dataset_sink_mode=setup == "sink")
    except (ValueError, RuntimeError) as error:
        Path(folder).with_name("refused").write_text(str(error).strip().splitlines()[0], "utf-8")


def page(columns: dict[str, Column]) -> str:
    reasons: list[str] = []
    extra = sorted(set().union(*(one.measured for one in columns.values())) - set(METRICS) - NOT_METRICS)
    lines = [INTRODUCTION, f"| metric | unit | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for metric in (*METRICS, *extra):
        cells = [cell(metric, one, reasons) for one in columns.values()]
        lines.append(f"| `{metric}` | {METRICS.get(metric, ('', ''))[0]} | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)), "", "## What they mean", ""]
    lines += [f"- `{metric}`: {meaning}." for metric, (_, meaning) in METRICS.items()]
    lines.append(EVALUATIONS)
    return "\n".join(lines) + "\n"


NOT_METRICS = {"step", "epoch", "timestamp", "seq", "attempt", "rank", "net_outputs.loss", "input_dtypes"}

EVALUATIONS = (
    "- `eval_<name>`: of each evaluation in `Model.fit`, a record of its own at the step before it; `eval_loss` is the mean over all "
    "batches with `metrics={'loss'}`, else MindSpore's own, which is that of the last batch (noted in `run.json`)."
)

INTRODUCTION = """# Which metrics are measured where

Written by `python docs/make_metrics_table.py` from real trainings with MindSpore on CPU and every export option on. "yes": recorded.
A number: absent, for the reason below, which is also in the run's `run.json`. On Ascend and GPU the device reports its memory, so that
`memory_peak` and `memory_allocated` are there.
"""


def cell(metric: str, one: Column, reasons: list[str]) -> str:
    if one.refused:
        reason = f"MindSpore refuses this set-up: {one.refused}"
    elif metric in one.measured:
        return "yes"
    else:
        reason = one.absent.get(metric) or "not recorded, and run.json does not say why"
    if reason not in reasons:
        reasons.append(reason)
    return str(reasons.index(reason) + 1)


if __name__ == "__main__":
    main()
