"""The article's three pitfalls (section 3) around a real training, reproduced as it tells them and shown gone."""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore")
msd = pytest.importorskip("mindspore.dataset")
nn = ms.nn

from mindspore.train import Callback  # noqa: E402

from monitor_core import ConfigError, Model, Monitor, load_monitor_logs  # noqa: E402
from monitor_core.writers.file import FileSystem  # noqa: E402


def train(monitor: Monitor, steps: int = 6, callbacks: Any = None) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    x = np.random.default_rng(0).normal(size=(steps * 2, 4)).astype(np.float32)
    network = nn.Dense(4, 1)
    model = Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.01), monitor=monitor)
    model.train(1, msd.NumpySlicesDataset((x, x[:, :1]), shuffle=False).batch(2), callbacks=callbacks)


class Registry(dict[str, Any]):
    """What ``transformers.AutoConfig.register`` does with a name it has already."""

    def register(self, name: str) -> None:
        if name in self:
            raise ValueError(f"'{name}' is already used by a Transformers config, pick another name.")
        self[name] = object


def test_3_1_a_name_of_transformers_is_refused_at_once_and_its_registry_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake: Any = types.ModuleType("transformers")
    fake.CONFIG_MAPPING = Registry(aimv2=object, bert=object)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    with pytest.raises(ValueError, match="'aimv2' is already used by a Transformers config"):
        fake.CONFIG_MAPPING.register("aimv2")  # the article's failure, deep inside a run

    with pytest.raises(ConfigError, match="'ms_monitor_aimv2_v1'"):
        Monitor(name="aimv2", log_dir=tmp_path / "clash")
    assert not (tmp_path / "clash").exists(), "refused before anything is made"

    monitor = Monitor(name="ms_monitor_aimv2_v1", log_dir=tmp_path / "good", responses=[])
    with pytest.raises(ConfigError, match="'ms_monitor_bert_v1'"):
        monitor.reconfigure(name="bert")
    train(monitor)
    assert json.loads((tmp_path / "good" / "run.json").read_text())["name"] == "ms_monitor_aimv2_v1"
    assert set(fake.CONFIG_MAPPING) == {"aimv2", "bert"}, "nothing was registered, and nothing removed"


@pytest.mark.parametrize("given", ["argument", "file", "default"])
def test_3_2_the_working_directory_of_a_notebook_kernel_may_change_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    for name in ("project", "project/notebooks", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "project" / "train.json").write_text('{"monitor_config": {"log_dir": "./logs", "collect_freq": 1}}')

    class ChangeDirectory(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == 3:
                os.chdir(tmp_path / "elsewhere")

    as_told = Path("./logs")
    monkeypatch.chdir(tmp_path / "project")
    meant = as_told.absolute()
    build = {
        "argument": lambda: Monitor(log_dir="./logs"),
        "file": lambda: Monitor.from_config("train.json"),
        "default": Monitor,
    }
    monitor = build[given]()
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    monitor.reconfigure(collect_freq=1, responses=[], max_file_size=1000)
    assert as_told.absolute() != meant, "the article's failure: the same relative path is another place now"
    train(monitor, 20, [ChangeDirectory()])

    assert f"msmon: writing to {meant}" in capsys.readouterr().out
    assert len(load_monitor_logs(monitor.config.log_dir)) == 20
    assert len(list(meant.glob("monitor_*.json"))) > 3, "files that began after the change are there too"
    assert json.loads((meant / "run.json").read_text())["attempts"][0]["status"] == "finished"
    assert [path.parent for path in tmp_path.rglob("run.json")] == [meant]


def test_3_3_a_disk_that_hangs_leaves_the_training_at_its_pace_and_memory_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, plain = threading.Event(), FileSystem.write_at

    def hang(self: Any, descriptor: int, data: bytes, offset: int) -> int:
        assert free.wait(60)
        return plain(self, descriptor, data, offset)

    waiting: list[int] = []

    class Watch(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            assert monitor._recorder is not None
            waiting.append(len(monitor._recorder._buffer))
            if run_context.original_args().cur_step_num == 300:
                free.set()

    monkeypatch.setattr(FileSystem, "write_at", hang)
    monitor = Monitor(log_dir=tmp_path, collect_freq=1, buffer_size=50, responses=[])
    train(monitor, 300, [Watch()])
    assert len(waiting) == 300, "the training came to its end while the disk did nothing"
    assert max(waiting) == 50
    df = load_monitor_logs(tmp_path)
    (attempt,) = json.loads((tmp_path / "run.json").read_text())["attempts"]
    assert attempt["dropped"] > 0
    assert len(df) + attempt["dropped"] == 300
    assert df["step"].iloc[-1] == 300
