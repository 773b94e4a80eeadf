"""Twelve broken set-ups: the right layer fails, with the right cause, in both languages."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from string import Formatter

import pytest

from dashboard.tools import main
from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder
from monitor_core.verify import Attached, Layer, report, verify
from monitor_core.verify_texts import CAUSES, LAYERS, SEEN
from monitor_core.writers.file import FileSystem

FIVE = {"loss": 1.0, "grad_norm": 1.0, "step_time": 0.1}


class Refusing(FileSystem):
    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def trained(
    folder: Path, scalars: dict[str, float] | None = None, steps: int = 20, hooks: int | None = 4, **config: object
) -> Recorder:
    recorder = Recorder(from_mapping({"log_dir": folder, "name": "run", **config}))
    recorder.open(hooks)
    for step in range(steps):
        recorder.record(step, 1, FIVE if scalars is None else scalars)
    recorder.close()
    return recorder


def verdicts(layers: list[Layer]) -> str:
    return "".join("+" if layer.passed else "-" for layer in layers)


@pytest.mark.parametrize("export_format", ["json", "csv", "protobuf", ["json", "csv"]])
def test_a_good_run_passes_in_each_format(tmp_path: Path, export_format: object) -> None:
    trained(tmp_path, export_format=export_format)
    assert verdicts(verify(tmp_path)) == "++++"


def nothing(folder: Path) -> None:
    """Another working directory, or no Monitor at all."""


def manifest_deleted(folder: Path) -> None:
    trained(folder)
    (folder / "run.json").unlink()


def manifest_damaged(folder: Path) -> None:
    trained(folder)
    (folder / "run.json").write_text("{")


def no_hooks(folder: Path) -> None:
    trained(folder, hooks=0)


def no_step(folder: Path) -> None:
    trained(folder, steps=0)


def files_deleted(folder: Path) -> None:
    trained(folder)
    for path in folder.glob("monitor_*"):
        path.unlink()


def disk_full(folder: Path) -> None:
    config = from_mapping({"log_dir": folder, "name": "run", "buffer_size": 10, "collect_freq": 1})
    recorder = Recorder(config, file_system=Refusing())
    recorder.open(4)
    for step in range(2000):
        recorder.record(step, 1, FIVE)
    recorder.close()


def gradients_off(folder: Path) -> None:
    trained(folder, {"loss": 1.0, "step_time": 0.1})


def damaged(folder: Path) -> None:
    trained(folder)
    path = next(folder.glob("monitor_*"))
    path.write_bytes(path.read_bytes().replace(b'"step":5,', b'"step":,', 1))


def killed(folder: Path) -> None:
    trained(folder)
    path = next(folder.glob("monitor_*"))
    os.truncate(path, path.stat().st_size - 20)


def garbage(folder: Path) -> None:
    trained(folder)
    (folder / "monitor_00002.pb").write_bytes(b"\x00\x01garbage" * 100)


def only_step_time_in_csv(folder: Path) -> None:
    trained(folder, {"step_time": 0.1}, export_format="csv")


BROKEN: list[tuple[Callable[[Path], None], str, int, str]] = [
    (nothing, "----", 1, "nothing"),
    (manifest_deleted, "--++", 1, "no_manifest"),
    (manifest_damaged, "--++", 1, "no_manifest"),
    (no_hooks, "+-++", 2, "hooks"),
    (no_step, "++--", 3, "never_fired"),
    (files_deleted, "++--", 3, "never_fired"),
    (disk_full, "++--", 3, "dropped"),
    (gradients_off, "+++-", 4, "keys_missing"),
    (damaged, "+++-", 4, "damaged"),
    (killed, "+++-", 4, "damaged"),
    (garbage, "+++-", 4, "damaged"),
    (only_step_time_in_csv, "+++-", 4, "keys_missing"),
]


@pytest.mark.parametrize(("break_", "expected", "layer", "cause"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_the_right_layer_and_cause_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    break_: Callable[[Path], None],
    expected: str,
    layer: int,
    cause: str,
) -> None:
    break_(tmp_path)
    layers = verify(tmp_path)
    assert verdicts(layers) == expected
    first = next(one for one in layers if not one.passed)
    assert (first.number, first.cause) == (layer, cause)
    assert main(["verify", "--logdir", str(tmp_path)]) == 1
    assert "likely cause" in capsys.readouterr().out
    assert main(["verify", "--logdir", str(tmp_path), "--language", "zh"]) == 1
    assert "可能原因" in capsys.readouterr().out


def test_what_a_living_monitor_knows_comes_first(tmp_path: Path) -> None:
    trained(tmp_path)
    assert verdicts(verify(tmp_path, Attached(True, 4, True))) == "++++"
    assert verdicts(verify(tmp_path, Attached(False, 0, True))) == "--++"
    disabled = verify(tmp_path, Attached(True, 0, False))
    assert (disabled[0].cause, verdicts(disabled)) == ("disabled", "--++")
    assert "MSMON_ENABLE" in report(disabled, "en")


def test_a_hand_written_loop_needs_no_hooks(tmp_path: Path) -> None:
    trained(tmp_path, hooks=None)
    layers = verify(tmp_path)
    assert verdicts(layers) == "++++"
    assert "monitor.step" in report(layers, "en")


def test_ranks_are_verified_together(tmp_path: Path) -> None:
    for rank in range(2):
        recorder = Recorder(from_mapping({"log_dir": tmp_path, "name": "ranks"}), rank=rank, world_size=2)
        recorder.open(4)
        recorder.record(1, 1, FIVE)
        recorder.close()
    layers = verify(tmp_path)
    assert verdicts(layers) == "++++"
    assert layers[2].values["records"] == 2


def test_texts_match_in_both_languages() -> None:
    assert len(LAYERS["en"]) == len(LAYERS["zh"]) == 4
    for catalogue in (SEEN, CAUSES):
        assert set(catalogue["en"]) == set(catalogue["zh"])
        for key, english in catalogue["en"].items():
            fields = [sorted(name for _, name, _, _ in Formatter().parse(json.dumps(text).replace("{{", "")) if name)
                      for text in (english, catalogue["zh"][key])]  # fmt: skip
            assert fields[0] == fields[1], key
