"""The Monitor among MindSpore's own callbacks and ways to train: nobody disturbs the other, in any order and in both modes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn, ops = ms.nn, ms.ops

from mindspore.train import (  # noqa: E402
    Callback,
    CheckpointConfig,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    Metric,
    ModelCheckpoint,
    ReduceLROnPlateau,
    SummaryCollector,
    TimeMonitor,
)
from mindspore.train import Model as StockModel  # noqa: E402

from monitor_core import Model, Monitor, load_monitor_logs  # noqa: E402

STEPS = 6
ORDERS: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "monitor first": lambda monitor, others: [monitor, *others],
    "monitor last": lambda monitor, others: [*others, monitor],
}


def net() -> Any:
    ms.set_seed(1)
    return nn.SequentialCell(nn.Dense(6, 8), nn.Tanh(), nn.Dense(8, 1))


def data(steps: int = STEPS, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).normal(size=(steps * 4, 6)).astype(np.float32)
    return msd.NumpySlicesDataset((x, x[:, :1]), shuffle=False).batch(4)


def model(
    monitor: Monitor | None = None, *, kind: Any = Model, network: Any = None, rate: float = 0.08, **more: Any
) -> Any:
    network = network or net()
    given = {"monitor": monitor, **more} if kind is Model else more
    return kind(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), rate, 0.9), **given)


def quiet(folder: Path, **config: Any) -> Monitor:
    return Monitor(log_dir=folder, name="interplay", responses=[], **config)


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def only_attempt(folder: Path) -> tuple[str, str | None]:
    (attempt,) = manifest(folder)["attempts"]
    return attempt["status"], attempt["reason"]


def weights(trained: Any) -> list[np.ndarray]:
    return [parameter.asnumpy().copy() for parameter in trained._network.get_parameters()]


class Seen(Callback):
    """What a callback of the user sees: losses, rates as a step begins, and evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.evaluations: list[dict[str, Any]] = []

    def on_train_step_begin(self, run_context: Any) -> None:
        self.rates.append(float(run_context.original_args().optimizer.learning_rate.asnumpy()))

    def on_train_step_end(self, run_context: Any) -> None:
        outputs = run_context.original_args().net_outputs
        self.losses.append(float((outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()))

    def on_eval_end(self, run_context: Any) -> None:
        params = run_context.original_args()
        self.evaluations.append({**params.eval_results, **params.metrics, "epoch": params.cur_epoch_num})


# --- MindSpore's own callbacks ----------------------------------------------------------------------------------------


def beside(folder: Path) -> list[Any]:
    config = CheckpointConfig(save_checkpoint_steps=4, keep_checkpoint_max=9)
    return [
        LossMonitor(4), TimeMonitor(), History(), LambdaCallback(on_train_step_end=lambda run_context: None),
        ModelCheckpoint(prefix="net", directory=str(folder), config=config),
        LearningRateScheduler(lambda rate, step: rate * 0.5 if step % 4 == 0 else rate),
    ]  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_beside_the_stock_callbacks_nothing_changes(mode: str, tmp_path: Path, order: str) -> None:
    alone, seen_alone = model(kind=StockModel), Seen()
    alone.train(2, data(), callbacks=[*beside(tmp_path / "alone"), seen_alone])
    watched, seen, monitor = model(kind=StockModel), Seen(), quiet(tmp_path / "logs")
    watched.train(2, data(), callbacks=ORDERS[order](monitor, [*beside(tmp_path / "watched"), seen]))

    assert monitor.hook_errors == {}
    assert seen.losses == seen_alone.losses
    assert all(np.array_equal(a, b) for a, b in zip(weights(alone), weights(watched), strict=True))
    df = load_monitor_logs(tmp_path / "logs")
    assert list(df["step"]) == list(range(1, 2 * STEPS + 1))
    assert list(df["loss"]) == seen.losses
    assert only_attempt(tmp_path / "logs") == ("finished", None)

    files = sorted(path.name for path in (tmp_path / "alone").glob("*.ckpt"))
    assert files == sorted(path.name for path in (tmp_path / "watched").glob("*.ckpt"))
    assert len(files) == 3
    for name in files:
        without = ms.load_checkpoint(str(tmp_path / "alone" / name))
        with_monitor = ms.load_checkpoint(str(tmp_path / "watched" / name))
        assert list(without) == list(with_monitor), "the same names in the same order"
        assert not [key for key in with_monitor if "msmon" in key]
        assert all(np.array_equal(without[key].asnumpy(), with_monitor[key].asnumpy()) for key in without)


def test_a_checkpoint_of_either_training_resumes_in_the_other(mode: str, tmp_path: Path) -> None:
    """Both ways, and the resumed training goes on exactly as the one that was never interrupted."""
    straight = model(kind=StockModel)
    straight.train(2, data())
    for first, second in ((None, "logs"), ("logs", None)):
        folder = tmp_path / str(first)
        keep = ModelCheckpoint(
            prefix="net", directory=str(folder), config=CheckpointConfig(save_checkpoint_steps=STEPS)
        )
        model(quiet(folder / "logs") if first else None).train(1, data(), callbacks=[keep])
        resumed = model(quiet(folder / "more") if second else None)
        (saved,) = folder.glob("*.ckpt")
        missing, unexpected = ms.load_param_into_net(resumed._train_network, ms.load_checkpoint(str(saved)))
        assert (missing, unexpected) == ([], [])
        resumed.train(1, data())
        assert all(np.array_equal(a, b) for a, b in zip(weights(straight), weights(resumed), strict=True))


@pytest.mark.parametrize("order", ORDERS)
def test_the_rate_follows_the_scheduler_and_is_that_of_the_step(mode: str, tmp_path: Path, order: str) -> None:
    """LearningRateScheduler changes the rate at a step's end: the new one is the next step's, wherever the Monitor stands."""
    halve = LearningRateScheduler(lambda rate, step: rate * 0.5 if step % 2 == 0 else rate)
    monitor, seen = quiet(tmp_path), Seen()
    model(kind=StockModel).train(1, data(), callbacks=ORDERS[order](monitor, [halve, seen]))
    rates = load_monitor_logs(tmp_path)["learning_rate"]
    assert list(rates) == seen.rates
    assert np.allclose(rates, [0.08, 0.08, 0.04, 0.04, 0.02, 0.02])


def test_the_rate_follows_reduce_lr_on_plateau(mode: str, tmp_path: Path) -> None:
    # No improvement is ever as large as min_delta, so that the rate goes down after every epoch but the first.
    reduce = ReduceLROnPlateau("eval_loss", factor=0.5, patience=1, min_delta=1e6, mode="min")
    seen = Seen()
    model(quiet(tmp_path), metrics={"loss"}).fit(3, data(2), data(1), callbacks=[reduce, seen])
    df = load_monitor_logs(tmp_path)
    trained = df[df["loss"].notna()]
    assert list(trained["learning_rate"]) == seen.rates
    assert len(set(seen.rates)) > 1
    assert np.allclose(seen.rates[-1], 0.08 * 0.5 ** (len(set(seen.rates)) - 1))


@pytest.mark.parametrize("order", ORDERS)
def test_early_stopping_is_a_stop_and_not_a_finish(mode: str, tmp_path: Path, order: str) -> None:
    early = EarlyStopping("eval_loss", patience=1, min_delta=1e6, mode="min")
    monitor = quiet(tmp_path)
    model(kind=StockModel, metrics={"loss"}).fit(9, data(2), data(1), callbacks=ORDERS[order](monitor, [early]))
    assert only_attempt(tmp_path) == ("stopped", "request_stop")
    assert load_monitor_logs(tmp_path)["epoch"].max() < 9


@pytest.mark.parametrize("order", ORDERS)
def test_summary_collector_and_monitor_both_collect(tmp_path: Path, order: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        model(kind=StockModel).train(1, data(), callbacks=[SummaryCollector(str(tmp_path / "stock"), collect_freq=1)])
    except Exception as error:  # noqa: BLE001 - a MindSpore built without summaries says so in its own way
        pytest.skip(f"SummaryCollector does not work in this MindSpore on its own: {error}")
    collector, monitor = SummaryCollector(str(tmp_path / "summary"), collect_freq=1), quiet(tmp_path / "logs")
    model(kind=StockModel).train(1, data(), callbacks=ORDERS[order](monitor, [collector]))
    assert monitor.hook_errors == {}
    assert len(load_monitor_logs(tmp_path / "logs")) == STEPS
    sizes = [sum(p.stat().st_size for p in (tmp_path / name).rglob("*MS")) for name in ("stock", "summary")]
    assert sizes[1] >= sizes[0] * 0.9 > 0, "the summaries are as rich as without the Monitor"


# --- Model.fit and Model.eval ------------------------------------------------------------------------------------------


class PerClass(Metric):
    """A metric whose value is an array."""

    def clear(self) -> None:
        pass

    def update(self, *inputs: Any) -> None:
        pass

    def eval(self) -> Any:
        return np.array([0.25, 0.75])


@pytest.mark.parametrize("kind", [Model, StockModel])
def test_each_evaluation_in_fit_is_one_record_of_its_own(mode: str, tmp_path: Path, kind: Any) -> None:
    monitor, seen = quiet(tmp_path, export_format=["json", "csv", "protobuf"]), Seen()
    metrics = {"loss": nn.Loss(), "mae": nn.MAE(), "classes": PerClass(), "eval_mse": nn.MSE()}
    trained = model(monitor if kind is Model else None, kind=kind, metrics=metrics)
    trained.fit(4, data(), data(3, 1), valid_frequency=2, callbacks=[seen] if kind is Model else [seen, monitor])

    assert monitor.hook_errors == {}
    assert only_attempt(tmp_path) == ("finished", None)
    df = load_monitor_logs(tmp_path)
    found = df[df["eval_mae"].notna()]
    assert [item["epoch"] for item in seen.evaluations] == [2, 4]
    for column, name in (("eval_loss", "loss"), ("eval_mae", "mae"), ("eval_mse", "eval_mse")):
        assert list(found[column]) == [float(item[name]) for item in seen.evaluations]
    assert list(found["step"]) == [2 * STEPS, 4 * STEPS]
    assert list(found["epoch"]) == [2, 4]
    assert found[["loss", "grad_norm", "step_time", "learning_rate", "host_memory"]].isna().all(axis=None)
    steps = df.drop(found.index)
    assert list(steps["step"]) == list(range(1, 4 * STEPS + 1))
    assert steps[["loss", "grad_norm", "step_time", "learning_rate"]].notna().all(axis=None)
    assert list(df["seq"]) == list(range(len(df)))
    assert "eval_classes" not in df
    assert "not one number" in manifest(tmp_path)["absent"]["eval_classes"]
    assert manifest(tmp_path)["notes"] == []
    assert len(list(tmp_path.glob("*.csv"))) <= 2, "the columns of evaluations cost one new file, not one each time"


def test_an_evaluation_is_no_part_of_a_steps_time(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)

    class SlowEvaluation(Callback):
        def on_eval_end(self, run_context: Any) -> None:
            import time

            time.sleep(1.0)

    model(quiet(tmp_path), metrics={"loss"}).fit(3, data(3), data(1), callbacks=[SlowEvaluation()])
    df = load_monitor_logs(tmp_path)
    assert df.loc[df["epoch"] > 1, "step_time"].max() < 1.0


def test_without_a_loss_metric_eval_loss_is_mindspores_and_said_to_be_the_last_batchs(
    mode: str, tmp_path: Path
) -> None:
    seen = Seen()
    model(quiet(tmp_path), metrics={"mae"}).fit(1, data(2), data(3, 1), callbacks=[seen])
    df = load_monitor_logs(tmp_path)
    assert df["eval_loss"].dropna().tolist() == [float(seen.evaluations[0]["eval_loss"])]
    assert any("last batch" in note for note in manifest(tmp_path)["notes"])


def test_an_evaluation_after_a_stop_stands_at_the_step_of_the_stop(mode: str, tmp_path: Path) -> None:
    class StopAt4(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 4:
                run_context.request_stop()

    model(quiet(tmp_path), metrics={"loss"}).fit(2, data(), data(1), callbacks=[StopAt4()])
    df = load_monitor_logs(tmp_path)
    assert list(df["step"]) == [1, 2, 3, 4, 4]
    assert list(df["eval_loss"].notna()) == [False, False, False, False, True]
    assert only_attempt(tmp_path) == ("stopped", "request_stop")


def test_an_evaluation_that_raises_is_a_training_that_failed(mode: str, tmp_path: Path) -> None:
    class Broken(Callback):
        def on_eval_begin(self, run_context: Any) -> None:
            raise LookupError("no such file")

    with pytest.raises(LookupError):
        model(quiet(tmp_path), metrics={"loss"}).fit(2, data(2), data(1), callbacks=[Broken()])
    assert only_attempt(tmp_path) == ("failed", "LookupError")
    assert len(load_monitor_logs(tmp_path)) == 2


def test_an_evaluation_on_its_own_is_no_training(mode: str, tmp_path: Path) -> None:
    monitor = quiet(tmp_path)
    trained = model(metrics={"loss"})
    trained.eval(data(1), callbacks=[monitor])
    assert not (tmp_path / "run.json").exists()
    assert monitor.silence is not None
    for step in (1, 2, 3):
        with monitor.step(step, loss=float(step)):
            pass
        trained.eval(data(1), callbacks=[monitor])
    monitor.close()
    assert only_attempt(tmp_path) == ("finished", None), "evaluations inside a hand-written loop do not end it"
    assert load_monitor_logs(tmp_path)["step"].tolist() == [1, 1, 2, 2, 3, 3]


# --- ways to train -------------------------------------------------------------------------------------------------------


def test_sink_mode_records_what_the_hooks_show(mode: str, tmp_path: Path) -> None:
    """On CPU MindSpore falls back to feeding step by step."""
    losses = []
    for folder, sink in (("fed", False), ("sunk", True)):
        model(quiet(tmp_path / folder)).train(2, data(), dataset_sink_mode=sink)
        df = load_monitor_logs(tmp_path / folder)
        assert list(df["step"]) == list(range(1, 2 * STEPS + 1))
        losses.append(list(df["loss"]))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("level", "options"),
    [("O0", {}), ("O2", {"loss_scale_manager": None}), ("auto", {}), ("O2", {})],
    ids=["O0", "O2 without loss scale", "auto", "O2"],
)
def test_mixed_precision_trains_or_fails_as_with_the_stock_model(
    mode: str, tmp_path: Path, level: str, options: dict[str, Any]
) -> None:
    """The loss scale that belongs to O2 needs operators that the CPU lacks: what MindSpore says then must come through."""

    def outcome(kind: Any, monitor: Monitor | None) -> tuple[list[float], str]:
        seen = Seen()
        try:
            trained = model(monitor if kind is Model else None, kind=kind, amp_level=level, **options)
            trained.train(1, data(), callbacks=[seen] if kind is Model or monitor is None else [seen, monitor])
        except (RuntimeError, TypeError, ValueError) as error:
            return seen.losses, f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return seen.losses, ""

    stock = outcome(StockModel, None)
    assert outcome(Model, quiet(tmp_path / "ours")) == stock
    assert outcome(StockModel, quiet(tmp_path / "stock")) == stock
    if not stock[1]:
        for folder in ("ours", "stock"):
            df = load_monitor_logs(tmp_path / folder)
            assert list(df["loss"]) == stock[0]
            assert df["grad_norm"].notna().all()


class Accumulate(nn.TrainOneStepCell):
    """Calls the optimizer with the summed gradients of every third step."""

    def __init__(self, network: Any, optimizer: Any) -> None:
        super().__init__(network, optimizer)
        self.sums = self.weights.clone(prefix="sums", init="zeros")
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="count", requires_grad=False)
        self.map = ops.HyperMap()

    def construct(self, *inputs: Any) -> Any:
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, ops.ones_like(loss))
        loss = ops.depend(loss, self.map(ops.assign_add, self.sums, grads))
        ops.assign_add(self.count, ms.Tensor(1, ms.int32))
        if self.count % 3 == 0:
            loss = ops.depend(loss, self.optimizer(self.sums))
            loss = ops.depend(loss, self.map(ops.assign, self.sums, self.map(ops.zeros_like, self.sums)))
        return loss


def test_gradient_accumulation_has_a_norm_where_the_optimizer_ran(mode: str, tmp_path: Path) -> None:
    norms = []

    def train(monitor: Monitor | None) -> list[np.ndarray]:
        network = net()
        cell = Accumulate(
            nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.01, 0.9)
        ).set_train()
        accumulated = Model(cell, monitor=monitor)
        accumulated.train(1, data(9))
        if not norms:  # the gradients of the first three steps, before anything has moved
            fresh = net()
            loss = nn.WithLossCell(fresh, nn.MSELoss())
            gradient = ops.value_and_grad(loss, None, list(fresh.trainable_params()))
            batches = list(data(9).create_tuple_iterator())[:3]
            sums = [
                sum(parts) for parts in zip(*[[g.asnumpy() for g in gradient(*b)[1]] for b in batches], strict=True)
            ]
            norms.append(np.sqrt(sum((part.astype(np.float64) ** 2).sum() for part in sums)))
        return [parameter.asnumpy().copy() for parameter in network.get_parameters()]

    without, watched = train(None), train(quiet(tmp_path))
    assert all(np.array_equal(a, b) for a, b in zip(without, watched, strict=True))
    df = load_monitor_logs(tmp_path)
    assert list(df.loc[df["grad_norm"].notna(), "step"]) == [3, 6, 9]
    assert df["grad_norm"][2] == pytest.approx(norms[0], rel=1e-5)
    assert df["loss"].notna().all()


def test_a_data_set_that_raises_in_the_middle_is_a_training_that_failed(mode: str, tmp_path: Path) -> None:
    class Rows:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise OSError("the disk with the data is gone")
            return np.ones(6, np.float32), np.ones(1, np.float32)

    broken = msd.GeneratorDataset(Rows(), ["x", "y"], shuffle=False, python_multiprocessing=False).batch(1)
    with pytest.raises(Exception, match="the disk with the data is gone") as caught:
        model(quiet(tmp_path)).train(1, broken)
    assert only_attempt(tmp_path) == ("failed", caught.type.__name__)
    assert list(load_monitor_logs(tmp_path)["step"]) == list(range(1, len(load_monitor_logs(tmp_path)) + 1))


# --- several ----------------------------------------------------------------------------------------------------------------


def test_one_monitor_watches_one_training_after_another(mode: str, tmp_path: Path) -> None:
    monitor = quiet(tmp_path)
    first = model(monitor, metrics={"loss"})
    first.train(1, data())
    first.fit(1, data(), data(1))
    model(kind=StockModel).train(1, data(3), callbacks=[monitor])
    assert monitor.hook_errors == {}
    df = load_monitor_logs(tmp_path)
    assert [item["status"] for item in manifest(tmp_path)["attempts"]] == ["finished"] * 3
    assert df.groupby("attempt").size().tolist() == [STEPS, STEPS + 1, 3]
    assert df.loc[df["loss"].notna(), "grad_norm"].notna().all()


def test_two_monitors_see_the_same_training(mode: str, tmp_path: Path) -> None:
    first, second = quiet(tmp_path / "a"), quiet(tmp_path / "b", export_options={"include_layer_grad": True})
    model(first, metrics={"loss"}).fit(2, data(), data(1), callbacks=[second])
    assert (first.hook_errors, second.hook_errors) == ({}, {})
    a, b = load_monitor_logs(tmp_path / "a"), load_monitor_logs(tmp_path / "b")
    for name in ("step", "loss", "learning_rate", "eval_loss"):
        assert np.array_equal(a[name], b[name], equal_nan=True)
    assert np.allclose(a["grad_norm"], b["grad_norm"], rtol=1e-6, equal_nan=True)
    assert a.loc[a["loss"].notna(), "grad_norm"].notna().all()
    assert only_attempt(tmp_path / "a") == only_attempt(tmp_path / "b") == ("finished", None)


@pytest.mark.parametrize("way", ["train", "fit", "stock"])
def test_a_monitor_given_twice_records_once(mode: str, tmp_path: Path, way: str) -> None:
    monitor = quiet(tmp_path)
    trained = model(None if way == "stock" else monitor, metrics={"loss"})
    if way == "stock":
        trained.train(1, data(), callbacks=[monitor, LossMonitor(), monitor])
    elif way == "train":
        trained.train(1, data(), callbacks=[monitor, LossMonitor()])
    else:
        trained.fit(1, data(), data(1), callbacks=monitor)
    assert load_monitor_logs(tmp_path)["step"].tolist() == [*range(1, STEPS + 1), *([STEPS] if way == "fit" else [])]
    assert only_attempt(tmp_path) == ("finished", None)
