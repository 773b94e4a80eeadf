"""Beside MindFormers' own TrainingStateMonitor; runs where mindformers is installed (1.9.0 with MindSpore 2.9.0; not in CI)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn = ms.nn

from monitor_core import Monitor, load_monitor_logs  # noqa: E402


@pytest.fixture
def state_monitor() -> Any:
    pytest.importorskip(
        "mindformers", reason="mindformers is not installed; the newest one wants a MindSpore that has no release yet"
    )
    return importlib.import_module("mindformers.core.callback.callback").TrainingStateMonitor


@pytest.mark.parametrize("ours_first", [True, False])
def test_both_monitors_see_the_same_training(
    mode: str, tmp_path: Path, state_monitor: Any, ours_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # mindformers writes its logs where it stands

    def train(monitor: Monitor | None) -> list[np.ndarray]:
        ms.set_seed(1)
        net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 1))
        x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
        data = msd.NumpySlicesDataset((x, x[:, :1].copy()), shuffle=False).batch(8)
        shown = {"weight_state_format": ["log"], "optimizer_state_format": ["log"]}
        theirs = state_monitor(origin_epochs=1, config=shown, dataset_size=8, global_batch_size=8)
        callbacks = [theirs] if monitor is None else [monitor, theirs] if ours_first else [theirs, monitor]
        model = ms.train.Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
        model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
        return [parameter.asnumpy().copy() for parameter in net.get_parameters()]

    alone = train(None)
    monitor = Monitor(log_dir=tmp_path / "run")
    watched = train(monitor)
    assert monitor.hook_errors == {}
    assert all(np.array_equal(one, other) for one, other in zip(alone, watched, strict=True))
    df = load_monitor_logs(tmp_path / "run")
    assert len(df) == 8
    assert df[["loss", "grad_norm", "learning_rate"]].notna().all().all()
