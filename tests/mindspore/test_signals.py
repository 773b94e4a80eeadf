"""A real ``Model.train`` that is told to end: the records are there and ``run.json`` says why."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monitor_core import load_monitor_logs

TRAINING = """
import sys, warnings
warnings.simplefilter("ignore")
import mindspore as ms, mindspore.dataset as msd, numpy as np
from mindspore import nn
from mindspore.train import Callback
from monitor_core import Model, Monitor

ms.set_context(mode=getattr(ms, sys.argv[2]), device_target="CPU")
x = np.ones((400_000, 4), np.float32)
data = msd.NumpySlicesDataset((x, x[:, :1]), shuffle=False).batch(4)
net = nn.Dense(4, 1)

class Ready(Callback):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 30:
            print("ready", flush=True)

model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 1e-3), monitor=Monitor(
    log_dir=sys.argv[1], collect_freq=10_000, max_file_size=10**9, responses=[]))
model.train(1, data, callbacks=[Ready()])
"""


#: How it ends -> what run.json says. MindSpore 2.10 turns Ctrl-C into a SIGTERM to itself while it iterates a data set.
REASONS = {-signal.SIGTERM: "SIGTERM", -signal.SIGINT: "KeyboardInterrupt"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
def test_a_signal_ends_a_training_as_ever_and_keeps_its_records(tmp_path: Path, number: int, mode: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TRAINING, str(tmp_path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as training:
        assert training.stdout is not None
        try:
            assert any(line == "ready\n" for line in training.stdout)
            training.send_signal(number)
            ended = training.wait(30)
        finally:
            training.kill()
    assert ended in ((-signal.SIGTERM,) if number == signal.SIGTERM else REASONS)
    (attempt,) = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert (attempt["status"], attempt["reason"]) == ("stopped", REASONS[ended])
    table = load_monitor_logs(tmp_path)
    assert table["seq"].tolist() == list(range(len(table)))
    assert len(table) == attempt["last_seq"] + 1 >= 30
