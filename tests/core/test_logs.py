"""``load_monitor_logs``: any mix of formats as one table, and the article's own code on what the writer wrote."""

from __future__ import annotations

import glob
import json
import logging
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import monitor_core
from monitor_core.errors import LogDirError
from monitor_core.formats import FORMATS
from monitor_core.formats.base import Format
from monitor_core.logs import load_monitor_logs
from monitor_core.record import ARTICLE_KEYS, FileHeader, Record
from monitor_core.writers.file import FileWriter

HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
all_formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)
RECORDS = [
    Record(0, 1, 10, None, 100.5, {"loss": 2.0, "grad_norm": 0.5, "step_time": 0.1}),
    Record(1, 1, 20, 1, 101.5, {"loss": math.nan, "grad_norm": math.inf, "lr": -0.0}),
    Record(
        2, 1, 30, 1, 102.5, {"loss": -math.inf, "step_time": 0.2}, {"input_shapes": [[32, 10]], "opt": {"a": {"b": 1}}}
    ),
]


def write(directory: Path, format_: Format, records: list[Record]) -> Path:
    writer = FileWriter(directory, format_, HEADER, 1_000_000)
    writer.write(records)
    writer.close()
    return writer.files[0]


def same(found: pd.Series, wanted: list[float]) -> bool:
    return np.array_equal(found.to_numpy(), np.array(wanted), equal_nan=True)


@all_formats
def test_each_format_gives_the_same_table(tmp_path: Path, format_: Format) -> None:
    write(tmp_path, format_, RECORDS)
    table = load_monitor_logs(tmp_path)
    assert table["seq"].tolist() == [0, 1, 2]
    assert table["attempt"].tolist() == [1, 1, 1]
    assert table["step"].tolist() == [10, 20, 30]
    assert table["epoch"].tolist() == [pd.NA, 1, 1]
    assert table["timestamp"].tolist() == [100.5, 101.5, 102.5]
    assert same(table["loss"], [2.0, math.nan, -math.inf])
    assert same(table["grad_norm"], [0.5, math.inf, math.nan])
    assert same(table["step_time"], [0.1, math.nan, 0.2])
    assert math.copysign(1, table["lr"][1]) == -1
    assert same(table["net_outputs.loss"], table["loss"].tolist())
    assert "rank" not in table
    assert table.attrs["problems"] == []


@pytest.mark.parametrize("name", ["json", "protobuf"])
def test_nested_objects_are_flattened_and_lists_kept(tmp_path: Path, name: str) -> None:
    write(tmp_path, FORMATS[name], RECORDS)
    table = load_monitor_logs(tmp_path)
    assert table["input_shapes"].tolist() == [None, None, [[32, 10]]]
    assert table["opt.a.b"].tolist() == [None, None, 1]
    assert "opt" not in table


def test_nesting_without_end_is_cut_and_harms_nothing(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"a": deep}
    write(tmp_path, FORMATS["json"], [RECORDS[0]._replace(nested={"x": deep})])
    table = load_monitor_logs(tmp_path)
    (name,) = [name for name in table if name.startswith("x")]
    assert len(name) < 40
    assert isinstance(table[name][0], dict)


def test_any_mix_of_formats_is_one_table_in_order_and_without_repeats(tmp_path: Path) -> None:
    write(tmp_path, FORMATS["csv"], RECORDS)
    write(tmp_path, FORMATS["json"], RECORDS[1:])
    write(tmp_path, FORMATS["protobuf"], [record._replace(attempt=2, step=99) for record in RECORDS[:2]])
    source = write(tmp_path, FORMATS["protobuf"], RECORDS)
    shutil.copyfile(source, tmp_path / "monitor_00077.pb")
    table = load_monitor_logs(tmp_path)
    assert list(zip(table["attempt"], table["seq"], strict=True)) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert table["step"].tolist() == [10, 20, 30, 99, 99]
    assert table["input_shapes"][2] == [[32, 10]], "the copy with nested values is the one that stays"


@all_formats
def test_order_comes_from_attempt_and_seq_never_from_names_or_times(tmp_path: Path, format_: Format) -> None:
    last = write(tmp_path / "late", format_, RECORDS[2:])
    first = write(tmp_path / "early", format_, RECORDS[:2])
    os.utime(first, (2e9, 2e9))
    last.rename(tmp_path / f"monitor_00001{format_.suffix}")
    first.rename(tmp_path / f"monitor_00002{format_.suffix}")
    assert load_monitor_logs(tmp_path)["step"].tolist() == [10, 20, 30]


def test_ranks_become_a_column(tmp_path: Path) -> None:
    write(tmp_path / "rank_10", FORMATS["json"], RECORDS[:1])
    write(tmp_path / "rank_2", FORMATS["protobuf"], RECORDS[:2])
    write(tmp_path / "rank_0", FORMATS["csv"], RECORDS[:1])
    (tmp_path / "rank_x").mkdir()
    table = load_monitor_logs(tmp_path)
    assert table["rank"].tolist() == [0, 2, 2, 10]
    assert table["seq"].tolist() == [0, 0, 1, 0]
    assert table.index.tolist() == [0, 1, 2, 3]


def test_files_of_the_run_itself_beside_ranks_are_rank_0(tmp_path: Path) -> None:
    write(tmp_path, FORMATS["json"], RECORDS[:1])
    write(tmp_path / "rank_1", FORMATS["json"], RECORDS[:1])
    assert load_monitor_logs(tmp_path)["rank"].tolist() == [0, 1]


def test_the_five_columns_are_there_even_when_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}", "utf-8")
    table = load_monitor_logs(tmp_path)
    assert len(table) == 0
    assert set(ARTICLE_KEYS) <= set(table)
    assert "net_outputs.loss" in table


@all_formats
def test_damage_is_reported_and_logged_once_per_file_and_never_raised(
    tmp_path: Path, format_: Format, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, format_, RECORDS[:1])
    place = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"\xff\xfe garbage \n more garbage \n")
    broken = tmp_path / f"monitor_00002{format_.suffix}"
    broken.write_bytes(b"\x00\x01")
    with caplog.at_level(logging.WARNING, "msmon"):
        table = load_monitor_logs(tmp_path)
    assert table["seq"].tolist() == [0]
    found = {one.file for one in table.attrs["problems"]}
    assert found == {path.name, broken.name}
    first = next(one.problem for one in table.attrs["problems"] if one.file == path.name)
    assert first.kind == "corrupt"
    assert place - 2 <= first.offset <= place
    assert [record.args[0] for record in caplog.records] == [path.name, broken.name]  # type: ignore[index]
    assert "damaged places, first at byte" in caplog.records[0].getMessage()


def test_an_unreadable_file_is_a_problem_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, FORMATS["json"], RECORDS[:1])
    bad = write(tmp_path, FORMATS["csv"], RECORDS[1:2])
    plain = Path.open

    def opened(self: Path, *args: object, **kwargs: object) -> object:
        if self == bad:
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", opened)
    table = load_monitor_logs(tmp_path)
    assert table["seq"].tolist() == [0]
    ((file, problem),) = table.attrs["problems"]
    assert (file, problem.kind) == (bad.name, "unreadable")
    assert problem.reason == "Permission denied; make the file readable"


def test_a_pipe_or_directory_with_a_monitor_files_name_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, FORMATS["json"], RECORDS)
    os.mkfifo(tmp_path / "monitor_00002.json")
    (tmp_path / "monitor_00003.json").mkdir()
    assert load_monitor_logs(tmp_path)["seq"].tolist() == [0, 1, 2]


def test_a_record_longer_than_one_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for format_ in FORMATS.values():
        write(tmp_path / format_.name, format_, RECORDS)
        for size in (1, 7, 50):
            monkeypatch.setattr("monitor_core.logs.READ_CHUNK_BYTES", size)
            table = load_monitor_logs(tmp_path / format_.name)
            assert table["step"].tolist() == [10, 20, 30]
            assert table.attrs["problems"] == []


def test_a_missing_directory_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="found nothing; pass the log_dir of the Monitor"):
        load_monitor_logs(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LogDirError, match="found a file"):
        load_monitor_logs(str(tmp_path / "file"))


def test_a_directory_that_cannot_be_listed_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(LogDirError, match="cannot be listed: make it readable and try again"):
        load_monitor_logs(tmp_path)


def test_the_package_offers_the_loader_under_the_articles_name(tmp_path: Path) -> None:
    write(tmp_path, FORMATS["json"], RECORDS)
    assert len(monitor_core.load_monitor_logs(str(tmp_path))) == 3


def test_the_articles_parse_check_of_section_2_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "logs", FORMATS["json"], RECORDS)
    monkeypatch.chdir(tmp_path)
    with open("./logs/monitor_00001.json", "r") as f:  # noqa: PTH123, UP015 - the article's own lines
        data = json.load(f)
    keys = list(data[0].keys())
    assert {"step", "loss", "step_time", "grad_norm", "timestamp"} <= set(keys)


def test_the_articles_loader_of_section_4_1_gives_real_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(n, 1, n, 1, float(n), {"loss": n / 7, "grad_norm": n / 9, "step_time": 0.5}) for n in range(200)]
    writer = FileWriter(tmp_path / "logs", FORMATS["json"], HEADER, 10_000)
    for start in range(0, 200, 20):
        writer.write(records[start : start + 20])
    assert len(writer.files) > 2
    monkeypatch.chdir(tmp_path)

    def articles_loader(log_dir):
        files = sorted(glob.glob(f"{log_dir}/monitor_*.json"))  # noqa: PTH207 - the article's own lines
        records = []
        for file in files:
            with open(file, "r") as f:  # noqa: PTH123, UP015
                data = json.load(f)
            for item in data:
                item["loss"] = item.get("net_outputs", {}).get("loss", 0)
                item["grad_norm"] = item.get("grad_norm", 0)
                item["step_time"] = item.get("step_time", 0)
                records.append(item)
        return pd.DataFrame(records)

    theirs, ours = articles_loader("./logs"), load_monitor_logs("./logs")
    assert len(theirs) == 200
    for name in ("step", "loss", "grad_norm", "step_time", "timestamp"):
        assert theirs[name].tolist() == ours[name].tolist()
