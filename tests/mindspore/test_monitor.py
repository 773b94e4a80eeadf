"""The Monitor around a real training: values, status, faults, checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn, ops = ms.nn, ms.ops

from mindspore.train import Callback  # noqa: E402

from monitor_core import ConfigError, LogDirError, Model, Monitor, load_monitor_logs  # noqa: E402
from monitor_core.mindspore import silence  # noqa: E402
from monitor_core.mindspore.collecting import StepCollector  # noqa: E402
from monitor_core.mindspore.train_step import OptimizerTap  # noqa: E402


def net() -> Any:
    ms.set_seed(1)
    return nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))


def data(steps: int = 12) -> Any:
    x = np.random.default_rng(0).normal(size=(steps * 4, 6)).astype(np.float32)
    return msd.NumpySlicesDataset((x, x[:, :1]), shuffle=False).batch(4)


def model(monitor: Monitor | None, network: Any = None, optimizer: Any = None) -> Model:
    network = network or net()
    return Model(
        network, nn.MSELoss(), optimizer or nn.Momentum(network.trainable_params(), 0.01, 0.9), monitor=monitor
    )


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())["attempts"][-1]


class At(Callback):
    """Does something at a step."""

    def __init__(self, step: int, action: Any) -> None:
        super().__init__()
        self.step, self.action = step, action

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == self.step:
            self.action(run_context)


def test_grad_norm_is_the_global_norm_of_the_gradients(mode: str, tmp_path: Path) -> None:
    network = net()
    batch = next(iter(data().create_tuple_iterator()))
    loss = nn.WithLossCell(network, nn.MSELoss())
    gradients = ops.value_and_grad(loss, None, list(network.trainable_params()))(*batch)[1]
    expected = np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in gradients))
    model(Monitor(log_dir=tmp_path, responses=[]), network).train(1, data(1))
    assert load_monitor_logs(tmp_path)["grad_norm"][0] == pytest.approx(expected, rel=1e-6)


def test_a_fixed_loss_scale_is_divided_out_of_the_norm(mode: str, tmp_path: Path) -> None:
    norms = []
    for scale in (1.0, 512.0):
        network = net()
        optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9, loss_scale=scale)
        manager = ms.amp.FixedLossScaleManager(scale, drop_overflow_update=False)
        folder = tmp_path / str(scale)
        watched = Model(
            network, nn.MSELoss(), optimizer, loss_scale_manager=manager, monitor=Monitor(log_dir=folder, responses=[])
        )
        watched.train(1, data(3))
        norms.append(load_monitor_logs(folder)["grad_norm"])
    assert np.allclose(norms[0], norms[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.02, [0.02] * 4),
        ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
        (lambda: nn.ExponentialDecayLR(0.1, 0.5, 1), [0.1, 0.05, 0.025, 0.0125]),
    ],
    ids=["fixed", "list", "cell"],
)
def test_the_learning_rate_is_the_one_of_the_step(mode: str, tmp_path: Path, rate: Any, expected: list[float]) -> None:
    network = net()
    optimizer = nn.Momentum(network.trainable_params(), rate() if callable(rate) else rate, 0.9)
    model(Monitor(log_dir=tmp_path, responses=[]), network, optimizer).train(1, data(4))
    assert np.allclose(load_monitor_logs(tmp_path)["learning_rate"], expected)


def test_groups_have_a_rate_each(mode: str, tmp_path: Path) -> None:
    network = net()
    parameters = list(network.trainable_params())
    groups = [{"params": parameters[:2], "lr": 0.3}, {"params": parameters[2:], "lr": 0.1}]
    model(Monitor(log_dir=tmp_path, responses=[]), network, nn.Momentum(groups, 0.2, 0.9)).train(1, data(3))
    df = load_monitor_logs(tmp_path)
    assert np.allclose(df["learning_rate"], 0.3)
    assert np.allclose(df["learning_rate/group_1"], 0.1)


def test_the_stock_model_works_with_callbacks(mode: str, tmp_path: Path) -> None:
    network = net()
    stock = ms.train.Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    monitor = Monitor(log_dir=tmp_path, responses=[])
    stock.train(2, data(), callbacks=[monitor])
    df = load_monitor_logs(tmp_path)
    assert list(df["step"]) == list(range(1, 25))
    assert df["grad_norm"].notna().all()
    assert list(df["epoch"]) == [1] * 12 + [2] * 12


def test_a_model_that_was_trained_before_gets_its_norms_too(mode: str, tmp_path: Path) -> None:
    network = net()
    stock = ms.train.Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    first = data()
    stock.train(1, first)
    stock.train(1, first, callbacks=[Monitor(log_dir=tmp_path, responses=[])])
    assert load_monitor_logs(tmp_path)["grad_norm"].notna().all()


def test_step_time_holds_the_wait_for_data(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    model(Monitor(log_dir=tmp_path, responses=[])).train(2, data())
    df = load_monitor_logs(tmp_path)
    assert (df["step_time"] > df["data_wait_time"]).all()
    assert (df["data_wait_time"] > 0).all()
    assert np.allclose(df["throughput"], 4 / df["step_time"])
    assert (df["host_memory"] > 50e6).all()
    assert "memory_peak" not in df, "the CPU backend counts no device memory: absent, never 0"
    assert "host_memory" in json.loads((tmp_path / "run.json").read_text())["absent"]["memory_peak"]


def test_how_a_training_ended_is_in_run_json(mode: str, tmp_path: Path) -> None:
    model(Monitor(log_dir=tmp_path / "a", responses=[])).train(1, data())
    assert status(tmp_path / "a")["status"] == "finished"

    model(Monitor(log_dir=tmp_path / "b", responses=[])).train(
        1, data(), callbacks=[At(5, lambda run: run.request_stop())]
    )
    assert (status(tmp_path / "b")["status"], status(tmp_path / "b")["reason"]) == ("stopped", "request_stop")
    assert len(load_monitor_logs(tmp_path / "b")) == 5

    def fail(run: Any) -> None:
        raise ZeroDivisionError("in a callback of the user")

    with pytest.raises(ZeroDivisionError):
        model(Monitor(log_dir=tmp_path / "c", responses=[])).train(1, data(), callbacks=[At(5, fail)])
    assert (status(tmp_path / "c")["status"], status(tmp_path / "c")["reason"]) == ("failed", "ZeroDivisionError")
    assert len(load_monitor_logs(tmp_path / "c")) == 4, "the record of the failing step never came to be"


def test_a_restart_is_a_new_attempt_and_initial_epoch_goes_on_counting(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    model(Monitor(log_dir=tmp_path, responses=[])).train(2, data())
    model(Monitor(log_dir=tmp_path, responses=[])).train(3, data(), initial_epoch=1)
    df = load_monitor_logs(tmp_path)
    assert list(df["attempt"]) == [1] * 24 + [2] * 24
    assert list(df.loc[df["attempt"] == 2, "step"]) == list(range(13, 37))
    assert sorted(path.name for path in tmp_path.glob("monitor_*")) == ["monitor_00001.json", "monitor_00002.json"]


def test_checkpoints_with_and_without_the_monitor_load_into_each_other(mode: str, tmp_path: Path) -> None:
    names = []
    for number, monitor in enumerate((None, Monitor(log_dir=tmp_path / "logs", responses=[]))):
        trained = model(monitor)
        trained.train(1, data())
        assert isinstance(trained._train_network.optimizer, OptimizerTap) == (monitor is not None)
        ms.save_checkpoint(trained._train_network, str(tmp_path / f"{number}.ckpt"))
        names.append(sorted(ms.load_checkpoint(str(tmp_path / f"{number}.ckpt"))))
    assert names[0] == names[1]
    for number, monitor in enumerate((Monitor(log_dir=tmp_path / "more", responses=[]), None)):
        fresh = model(monitor)
        missing, unexpected = ms.load_param_into_net(
            fresh._train_network, ms.load_checkpoint(str(tmp_path / f"{number}.ckpt"))
        )
        assert (missing, unexpected) == ([], [])


def test_a_failing_hook_never_reaches_the_training(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(log_dir=tmp_path, responses=[])

    def broken(self: Any, params: Any, options: Any) -> Any:
        raise RuntimeError("a collector is broken")

    monkeypatch.setattr(StepCollector, "collect", broken)
    with caplog.at_level(logging.ERROR, "msmon"):
        model(monitor).train(1, data())
    assert monitor.hook_errors == {"on_train_step_end": 12}
    assert [
        r.message for r in caplog.records if "a collector is broken" in r.message and "said once" in r.message
    ].__len__() == 1


def test_a_finding_can_stop_the_training(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    network = net()
    optimizer = nn.SGD(network.trainable_params(), 1e12)
    monitor = Monitor(log_dir=tmp_path, collect_freq=1, responses=["stop"])
    model(monitor, network, optimizer).train(1, data(4000))
    df = load_monitor_logs(tmp_path)
    assert len(df) < 4000
    assert status(tmp_path)["status"] == "stopped"
    assert "non_finite" in status(tmp_path)["reason"]
    event = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (event["type"], event["kind"]) == ("finding", "non_finite")


def test_a_relative_log_dir_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    monitor = Monitor(log_dir="./logs", responses=[])
    monkeypatch.chdir(tmp_path / "notebooks")
    model(monitor).train(1, data())
    assert (tmp_path / "logs" / "monitor_00001.json").exists()
    assert not (tmp_path / "notebooks" / "logs").exists()


def test_wrong_values_at_run_time_are_refused_and_good_ones_taken(tmp_path: Path) -> None:
    monitor = Monitor(log_dir=tmp_path, collect_freq=50)
    with pytest.raises(ConfigError, match="collect_freq: got 0"):
        monitor._config["collect_freq"] = 0
    monitor.reconfigure(collect_freq=3)
    assert monitor.config.collect_freq == monitor._config["collect_freq"] == 3
    with pytest.raises(ConfigError, match="cannot be removed"):
        del monitor._config["name"]

    seen: list[str] = []

    def change(run: Any) -> None:
        try:
            monitor.reconfigure(export_format="csv")
        except ConfigError as error:
            seen.append(str(error))
        monitor.reconfigure(collect_freq=1)

    model(monitor).train(1, data(), callbacks=[At(2, change)])
    assert "export_format: fixed while a training is recorded" in seen[0]
    assert len(load_monitor_logs(tmp_path)) == 12


def test_a_log_dir_that_is_a_file_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LogDirError, match="choose another log_dir"):
        Monitor(log_dir=tmp_path / "taken")


def test_a_custom_step_cell_without_optimizer_says_why_there_is_no_norm(tmp_path: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)

    class OwnStep(nn.Cell):
        def construct(self, x: Any, y: Any) -> Any:
            return ((x.sum(axis=1) - y.sum(axis=1)) ** 2).mean()

    Model(OwnStep(), monitor=Monitor(log_dir=tmp_path, responses=[])).train(1, data())
    df = load_monitor_logs(tmp_path)
    assert df["grad_norm"].isna().all()
    assert df["loss"].notna().all()
    assert "custom step cell" in json.loads((tmp_path / "run.json").read_text())["absent"]["grad_norm"]


def test_a_hand_written_loop_is_recorded_step_by_step(mode: str, tmp_path: Path) -> None:
    network = net()
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    forward = nn.WithLossCell(network, nn.MSELoss())
    gradient = ops.value_and_grad(forward, None, optimizer.parameters)
    monitor = Monitor(log_dir=tmp_path, responses=[])
    losses, norms = [], []
    for number, batch in enumerate(data().create_tuple_iterator(), 1):
        with monitor.step(number, epoch=1, temperature=0.5) as step:
            loss, grads = gradient(*batch)
            optimizer(grads)
            step.loss, step.grads = loss, grads
        losses.append(float(loss.asnumpy()))
        norms.append(np.sqrt(sum((g.asnumpy().astype(np.float64) ** 2).sum() for g in grads)))
    with pytest.raises(ZeroDivisionError), monitor.step(99):
        raise ZeroDivisionError
    with monitor.step(13, loss="no number", grads=[None]):
        pass
    monitor.close()
    df = load_monitor_logs(tmp_path)
    assert list(df["step"]) == list(range(1, 13)), (
        "a step that failed is no record, and bad values never reach the loop"
    )
    assert list(df["loss"]) == losses
    assert np.allclose(df["grad_norm"], norms, rtol=1e-6)
    assert (df["step_time"] > 0).all() and (df["temperature"] == 0.5).all()
    assert monitor.hook_errors == {"_own_step": 1}
    assert status(tmp_path)["status"] == "finished"


def test_a_monitor_that_recorded_nothing_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    silence.tell()
    Monitor(log_dir=tmp_path / "forgotten")
    bound = model(Monitor(log_dir=tmp_path / "bound"))
    used = model(Monitor(log_dir=tmp_path / "used", responses=[]))
    used.train(1, data(2))
    Monitor(enable=False, log_dir=tmp_path / "off")
    with caplog.at_level(logging.WARNING, "msmon"):
        assert silence.tell() == 2
        assert silence.tell() == 0
    assert "it was given to no training: use Model(..., monitor=monitor)" in caplog.text
    assert "its hooks are bound but never fired" in caplog.text
    assert "monitor.step" in bound._monitor.silence
    assert used._monitor.silence is None


def test_verify_passes_after_a_training_and_names_a_foreign_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    monitor = Monitor(log_dir=tmp_path, responses=[])
    trained = model(monitor)
    trained.train(1, data())
    assert monitor.verify(trained)
    assert monitor.verify()
    assert "4 hooks on the train network" in capsys.readouterr().out
    assert not monitor.verify(model(None))
    assert "the model has no Monitor" in capsys.readouterr().out
