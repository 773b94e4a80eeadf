"""The article's own snippets, imports aside unchanged, against real MindSpore in both modes."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn = ms.nn

from mindspore.train.callback import _InternalCallbackParam  # noqa: E402

from monitor_core import (  # noqa: E402
    Model,
    Monitor,
    detect_gradient_vanish,
    detect_loss_oscillation,
    detect_step_time_spike,
)


def parts() -> tuple[Any, Any, Any]:
    network = nn.SequentialCell(nn.Dense(6, 8), nn.ReLU(), nn.Dense(8, 2))
    return (
        network,
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        nn.Adam(network.trainable_params(), 0.01),
    )


def data(steps: int = 10) -> Any:
    x = np.random.default_rng(0).normal(size=(steps * 4, 6)).astype(np.float32)
    return msd.NumpySlicesDataset((x, (x[:, 0] > 0).astype(np.int32)), shuffle=False).batch(4)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The article writes to ./logs."""
    monkeypatch.chdir(tmp_path)


def test_2_1_a_dict_is_refused_with_the_right_way() -> None:
    network, loss_fn, optimizer = parts()
    with pytest.raises(TypeError, match=r"Monitor\(\*\*cfg\)"):
        Model(network, loss_fn, optimizer, monitor={"enable": True, "log_dir": "./logs"})


def test_2_1_the_configuration_reaches_the_model(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    monitor_cfg = {"enable": True, "log_dir": "./logs", "collect_freq": 50, "export_format": "json"}
    monitor = Monitor(**monitor_cfg)
    model = Model(network, loss_fn, optimizer, monitor=monitor)

    assert isinstance(model._monitor, Monitor)
    assert model._monitor is monitor
    for field, value in monitor_cfg.items():
        expected = str(Path("./logs").absolute()) if field == "log_dir" else value
        assert model._monitor._config[field] == expected
    assert len(model._monitor._config) == 12


def test_2_2_four_hooks_are_bound(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    model = Model(network, loss_fn, optimizer, monitor=Monitor(log_dir="./logs"))
    model.train(1, data())
    assert len(model._train_network.hook_list) == 4
    assert [hook.__name__ for hook in model._train_network.hook_list] == [
        "on_train_step_begin", "on_train_step_end", "on_train_epoch_begin", "on_train_epoch_end",
    ]  # fmt: skip


def test_2_2_no_hooks_when_disabled(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    model = Model(network, loss_fn, optimizer, monitor=Monitor(enable=False))
    model.train(1, data())
    assert len(model._train_network.hook_list) == 0


def test_2_3_collection_triggered_by_hand(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    monitor = Monitor(enable=True, log_dir="./logs", collect_freq=50, export_format="json")
    model = Model(network, loss_fn, optimizer, monitor=monitor)
    loss = ms.Tensor(0.7, ms.float32)

    monitor._config["collect_freq"] = 1
    monitor._config["export_format"] = "json"
    cb_params = _InternalCallbackParam()
    cb_params.cur_step_num = 1
    cb_params.net_outputs = loss
    cb_params.train_network = model._train_network
    monitor.on_train_step_end(cb_params)

    assert monitor.flush().last_seq == 0
    assert Path("./logs/monitor_00001.json").exists()
    monitor.close()


def test_2_4_the_first_record_has_the_five_keys(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    Model(network, loss_fn, optimizer, monitor=Monitor(log_dir="./logs")).train(1, data())

    with open("./logs/monitor_00001.json", "r") as f:  # noqa: UP015, PTH123 - the article's line
        data_read = json.load(f)
    assert {"step", "loss", "step_time", "grad_norm", "timestamp"} <= set(data_read[0].keys())
    assert all(
        isinstance(data_read[0][key], (int, float)) for key in ("step", "loss", "step_time", "grad_norm", "timestamp")
    )


def load_monitor_logs(log_dir: str) -> pd.DataFrame:
    """The article's loader, section 4.1, as it stands."""
    files = sorted(glob.glob(f"{log_dir}/monitor_*.json"))  # noqa: PTH207
    records = []
    for file in files:
        with open(file, "r") as f:  # noqa: UP015, PTH123
            data = json.load(f)
            for item in data:
                item["loss"] = item.get("net_outputs", {}).get("loss", 0)
                item["grad_norm"] = item.get("grad_norm", 0)
                item["step_time"] = item.get("step_time", 0)
                records.append(item)
    return pd.DataFrame(records)


def test_4_1_the_articles_loader_returns_the_real_losses(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    Model(network, loss_fn, optimizer, monitor=Monitor(log_dir="./logs")).train(1, data())
    from monitor_core import load_monitor_logs as ours

    theirs, mine = load_monitor_logs("./logs"), ours("./logs")
    for key in ("step", "loss", "grad_norm", "step_time", "timestamp"):
        assert np.array_equal(theirs[key].to_numpy(float), mine[key].to_numpy(float)), key
    assert (theirs["loss"] > 0).all()


def test_4_2_the_three_detectors_run_on_a_training(mode: str) -> None:
    network, loss_fn, optimizer = parts()
    Model(network, loss_fn, optimizer, monitor=Monitor(log_dir="./logs", responses=[])).train(3, data(60))
    df = load_monitor_logs("./logs")

    oscillating_steps = df[detect_loss_oscillation(df)].index
    vanish_steps = df[detect_gradient_vanish(df)]
    spike_steps = df[detect_step_time_spike(df)]
    assert len(df) == 180
    std_loss = df["loss"].rolling(100).std()
    assert list(oscillating_steps) == list(df[std_loss / df["loss"].rolling(100).mean() > 0.3].index)
    assert len(vanish_steps) == int((df["grad_norm"] < 1e-6).sum())
    assert list(spike_steps.index) == list(df[df["step_time"] > df["step_time"].median() * 2.0].index)
    assert 0 in spike_steps.index, "the first step compiles the graph or the kernels"
