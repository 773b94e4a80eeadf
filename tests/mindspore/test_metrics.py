"""The metrics that are measured on request, and the facts of a training: values where they can be measured, reasons elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn, ops = ms.nn, ms.ops

from mindspore.train import Callback  # noqa: E402

from monitor_core import ConfigError, Model, Monitor, load_monitor_logs  # noqa: E402

#: Below, at and above the borders between packed, row-wise and odd gradients; 1-D, 2-D and 4-D ones.
SHAPES = {
    "small": [(3,), (5, 7), (1,)],
    "packed to the row": [(1024,), (32, 32)],
    "large": [(256, 300), (70_001,), (1024, 64)],
    "mixed": [(8, 4, 3, 3), (80_000,), (2,), (100, 700)],
}


class Pull(nn.Cell):
    """Its gradients are its inputs: the loss is the sum of each parameter times a constant of its shape."""

    def __init__(self, constants: list[np.ndarray], dtype: Any) -> None:
        super().__init__()
        self.weights = ms.ParameterTuple(
            [
                ms.Parameter(ms.Tensor(np.zeros(c.shape, np.float32), dtype), name=f"w{i}")
                for i, c in enumerate(constants)
            ]
        )
        self.constants = [ms.Tensor(c, dtype) for c in constants]

    def construct(self, x: Any) -> Any:
        total = x.sum()
        for place in range(len(self.constants)):
            total = total + ops.cast((self.weights[place] * self.constants[place]).sum(), ms.float32)
        return total


def data(steps: int = 4, batch: int = 4) -> Any:
    x = np.random.default_rng(0).normal(size=(steps * batch, 6)).astype(np.float32)
    return msd.NumpySlicesDataset((x,), shuffle=False).batch(batch)


def train(network: Any, folder: Path, *callbacks: Any, rows: Any = None, **options: bool) -> Monitor:
    optimizer = nn.SGD(network.trainable_params(), 0.0)
    monitor = Monitor(log_dir=folder, export_options=options)
    Model(network, None, optimizer, monitor=monitor).train(1, rows or data(), callbacks=list(callbacks))
    assert monitor.hook_errors == {}
    return monitor


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_norms_of_all_sizes_agree_with_float64(mode: str, tmp_path: Path, shapes: list[Any], dtype: str) -> None:
    source = np.random.default_rng(2)
    constants = [source.normal(size=shape).astype(dtype) for shape in shapes]
    each = [float(np.sqrt((c.astype(np.float64) ** 2).sum())) for c in constants]
    for folder, options in ((tmp_path / "total", {}), (tmp_path / "each", {"include_layer_grad": True})):
        train(Pull(constants, getattr(ms, dtype)), folder, **options)
        df = load_monitor_logs(folder)
        assert df["grad_norm"].to_list() == pytest.approx([np.linalg.norm(each)] * 4, rel=3e-7)
    for place, norm in enumerate(each):
        assert df[f"grad_norm/w{place}"].to_list() == pytest.approx([norm] * 4, rel=3e-7)


def test_a_monitor_that_wants_layers_takes_over_from_one_that_did_not(mode: str, tmp_path: Path) -> None:
    network = Pull([np.full((2, 2), 3, np.float32)], ms.float32)
    model = Model(network, None, nn.SGD(network.trainable_params(), 0.0))
    model.train(1, data(), callbacks=[Monitor(log_dir=tmp_path / "one")])
    model.train(1, data(), callbacks=[Monitor(log_dir=tmp_path / "two", export_options={"include_layer_grad": True})])
    model.train(1, data(), callbacks=[Monitor(log_dir=tmp_path / "three")])
    assert "grad_norm/w0" not in load_monitor_logs(tmp_path / "one")
    assert load_monitor_logs(tmp_path / "two")["grad_norm/w0"].to_list() == [6.0] * 4
    three = load_monitor_logs(tmp_path / "three")
    assert three["grad_norm"].to_list() == [6.0] * 4
    assert "grad_norm/w0" not in three


class SlowForward(nn.Cell):
    """Sleeps 30 ms in each forward pass (PYNATIVE only)."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(6, 1)

    def construct(self, x: Any) -> Any:
        time.sleep(0.03)
        return self.dense(x).mean()


class SlowBackward(nn.Cell):
    """Sleeps 30 ms in each backward pass (PYNATIVE only)."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(6, 1)

    def construct(self, x: Any) -> Any:
        return self.dense(x).mean()

    def bprop(self, x: Any, out: Any, dout: Any) -> Any:
        time.sleep(0.03)
        return (ops.zeros_like(x),)


class Around(nn.Cell):
    """A cell with its own bprop as a layer: as the outermost cell MindSpore would not call its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Dense(6, 6)
        self.slow = SlowBackward()

    def construct(self, x: Any) -> Any:
        return self.slow(self.before(x))


class OwnStepCell(nn.Cell):
    """A step cell that has no network of its own."""

    def construct(self, x: Any) -> Any:
        return x.mean()


@pytest.mark.parametrize(("slow", "metric", "other"), [
    (SlowForward, "forward_time", "backward_time"), (Around, "backward_time", "forward_time"),
])  # fmt: skip
def test_phases_are_told_apart_in_pynative_mode(tmp_path: Path, slow: Any, metric: str, other: str) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        train(slow(), tmp_path, include_phase_time=True)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    df = load_monitor_logs(tmp_path).iloc[1:]  # the first step warms up
    assert (df[metric] >= 0.03).all()
    assert df[other].median() < 0.03
    assert (df["forward_time"] + df["backward_time"] <= df["step_time"]).all()


def test_phases_in_graph_mode_are_absent_with_the_reason(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    train(Pull([np.ones((2,), np.float32)], ms.float32), tmp_path, include_phase_time=True, include_comm=True)
    assert not {"forward_time", "backward_time", "comm_bytes"} & set(load_monitor_logs(tmp_path))
    absent = manifest(tmp_path)["absent"]
    assert "GRAPH mode" in absent["forward_time"]
    assert "GRAPH mode" in absent["backward_time"]
    assert "one process" in absent["comm_bytes"]


@pytest.mark.parametrize(("network", "reason"), [(SlowBackward, "its own bprop"), (None, "no 'network' cell")])
def test_a_cell_that_calls_no_hooks_says_why_there_are_no_phases(tmp_path: Path, network: Any, reason: str) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        if network is None:
            monitor = Monitor(log_dir=tmp_path, export_options={"include_phase_time": True})
            Model(OwnStepCell(), monitor=monitor).train(1, data())
        else:
            train(network(), tmp_path, include_phase_time=True)
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)
    assert reason in manifest(tmp_path)["absent"]["forward_time"]
    assert "forward_time" not in load_monitor_logs(tmp_path)


def test_nothing_stays_hooked_after_the_training(tmp_path: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        network = Pull([np.ones((2,), np.float32)], ms.float32)
        monitor = train(network, tmp_path, include_phase_time=True)
        assert not network._forward_hook
        assert not network._forward_pre_hook
        assert monitor._collector._phases._handles == []
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def test_a_shorter_last_batch_is_a_new_set_of_inputs_told_once(tmp_path: Path) -> None:
    rows = np.zeros((10, 6), np.float32)
    batches = msd.NumpySlicesDataset((rows,), shuffle=False).batch(4)
    network = Pull([np.ones((2,), np.float32)], ms.float32)
    monitor = Monitor(log_dir=tmp_path, export_options={"include_input_shape": True}, responses=[])
    Model(network, None, nn.SGD(network.trainable_params(), 0.0), monitor=monitor).train(2, batches)
    df = load_monitor_logs(tmp_path)
    assert df["input_signature"].to_list() == [0, 0, 1, 0, 0, 1]
    assert df["input_shapes"].to_list()[2] == [[2, 6]]
    assert df["input_dtypes"].to_list()[2] == ["float32"]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["first_step"]) for event in events] == [("input_change", 3)]


def test_what_a_training_was_set_up_with_is_in_run_json(mode: str, tmp_path: Path) -> None:
    network = nn.SequentialCell(nn.Dense(6, 1))
    groups = [
        {"params": [network[0].weight], "lr": nn.CosineDecayLR(0.001, 0.05, 8), "weight_decay": 0.1},
        {"params": [network[0].bias], "lr": [0.1, 0.2, 0.3, 0.4]},
    ]
    x = np.zeros((16, 6), np.float32)
    monitor = Monitor(log_dir=tmp_path)
    Model(network, nn.MSELoss(), nn.Momentum(groups, 0.1, 0.75), monitor=monitor).train(
        1, msd.NumpySlicesDataset((x, x[:, :1]), shuffle=False).batch(4)
    )
    facts = manifest(tmp_path)["attempts"][0]["facts"]
    assert facts["mode"] == mode
    assert (facts["network"], facts["step_cell"]) == ("SequentialCell", "TrainOneStepCell")
    assert (facts["parameters"], facts["epochs"], facts["steps_per_epoch"], facts["batch_size"]) == (7, 1, 4, 4)
    optimizer = facts["optimizer"]
    assert optimizer["class"] == "Momentum"
    assert optimizer["momentum"] == pytest.approx(0.75)
    cosine, listed = optimizer["learning_rate"]
    assert cosine == {"class": "CosineDecayLR"}
    assert listed["values"] == pytest.approx([0.1, 0.2, 0.3, 0.4])


class ReconfigureAt(Callback):
    """Tries to switch on what must be built into the graph, in the middle of a training."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.monitor: Any = None

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 2:
            try:
                self.monitor.reconfigure(export_options={"include_layer_grad": True})
            except ConfigError as error:
                self.error = error


def test_what_must_be_built_in_cannot_be_switched_on_in_the_middle(tmp_path: Path) -> None:
    at = ReconfigureAt()
    at.monitor = Monitor(log_dir=tmp_path)
    network = Pull([np.ones((2,), np.float32)], ms.float32)
    Model(network, None, nn.SGD(network.trainable_params(), 0.0), monitor=at.monitor).train(1, data(), callbacks=[at])
    assert "export_options.include_layer_grad=True: fixed while" in str(at.error)
    at.monitor.reconfigure(export_options={"include_layer_grad": True})
