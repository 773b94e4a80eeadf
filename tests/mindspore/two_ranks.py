"""One of two processes of a data-parallel training: python two_ranks.py MODE LOGDIR|none OUT (started by test_two_ranks.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback

from monitor_core import Model, Monitor
from monitor_core.config import EXPORT_OPTIONS

STEPS = 8


class Losses(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_step_end(self, run_context: ms.train.RunContext) -> None:
        self.seen.append(float(run_context.original_args().net_outputs.asnumpy()))


def main(mode: str, log_dir: str, out: str) -> None:
    ms.set_context(mode=getattr(ms, f"{mode}_MODE"), device_target="CPU")
    init()
    rank, size = get_rank(), get_group_size()
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=size)
    ms.set_seed(1)
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
    x = np.random.default_rng(rank).normal(size=(STEPS * 8, 8)).astype(np.float32)
    data = NumpySlicesDataset((x, x[:, :1].copy()), shuffle=False).batch(8)
    monitor = None
    if log_dir != "none":
        monitor = Monitor(log_dir=log_dir, name="two ranks", export_options=dict.fromkeys(EXPORT_OPTIONS, True))
    model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9), monitor=monitor)
    losses = Losses()
    model.train(1, data, callbacks=[losses], dataset_sink_mode=False)
    weights = {parameter.name: parameter.asnumpy() for parameter in net.get_parameters()}
    np.savez(Path(out) / f"rank_{rank}.npz", losses=np.array(losses.seen), **weights)
    assert monitor is None or monitor.hook_errors == {}


if __name__ == "__main__":
    main(*sys.argv[1:])
