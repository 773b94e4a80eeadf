"""Numbered files: rotation, retention, numbering beside others, and what happens when they are taken away."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from monitor_core.errors import FormatError, WriteError
from monitor_core.formats import FORMATS
from monitor_core.formats.base import Format
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileSystem, FileWriter, Retention

HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
JSON, CSV, PROTOBUF = FORMATS["json"], FORMATS["csv"], FORMATS["protobuf"]
all_formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)


def records(start: int, count: int, **extra: float) -> list[Record]:
    return [Record(seq, 1, seq, None, float(seq), {"loss": seq / 7, **extra}) for seq in range(start, start + count)]


def read(path: Path) -> list[int]:
    """Sequence numbers in a file, which must be sound."""
    format_ = next(found for found in FORMATS.values() if path.name.endswith(found.suffix))
    _, batch, problems = format_.decode(format_.start(), path.read_bytes(), final=True)
    assert problems == ()
    return batch.seq.tolist()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


class FixedClock:
    """A clock that stands where it is put."""

    def __init__(self, now: float) -> None:
        self.now = now

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@all_formats
def test_nothing_is_touched_before_the_first_write(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path / "logs", format_, HEADER, 10_000)
    writer.close()
    assert names(tmp_path) == []


@all_formats
def test_what_is_written_is_there_when_write_returns(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path / "new" / "logs", format_, HEADER, 100_000)
    for start in range(0, 30, 10):
        assert writer.write(records(start, 10)) == start + 9
        assert read(writer.files[0]) == list(range(start + 10))
    assert [path.name for path in writer.files] == [f"monitor_00001{format_.suffix}"]


def test_json_load_works_after_every_write(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path, JSON, HEADER, 3000)
    for seq in range(50):
        writer.write(records(seq, 1))
        assert sum(len(json.loads(path.read_text("utf-8"))) for path in writer.files) == seq + 1


@all_formats
@pytest.mark.parametrize("size", [1, 7])
def test_a_batch_that_would_cross_the_limit_goes_to_the_next_file(tmp_path: Path, format_: Format, size: int) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 2500)
    for start in range(0, 280, size):
        writer.write(records(start, size))
    assert len(writer.files) > 2
    assert [path.name for path in writer.files] == names(tmp_path)
    assert all(path.stat().st_size <= 2500 for path in writer.files)
    parts = [read(path) for path in writer.files]
    assert [seq for part in parts for seq in part] == list(range(280))
    assert all(len(part) % size == 0 for part in parts), "a batch that fits a file is not torn apart"


@all_formats
def test_a_batch_too_large_for_a_file_is_split_over_several(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 2500)
    assert writer.write(records(0, 200)) == 199
    assert len(writer.files) > 3
    assert all(path.stat().st_size <= 2500 for path in writer.files)
    assert [seq for path in writer.files for seq in read(path)] == list(range(200))


@all_formats
def test_a_record_larger_than_a_file_gets_one_of_its_own(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 400)
    huge = records(1, 1, **{f"metric_{number:03d}": 0.5 for number in range(100)})
    for batch in (records(0, 1), huge, records(2, 1)):
        writer.write(batch)
    assert [read(path) for path in writer.files if path.stat().st_size > 400] == [[1]]
    assert [seq for path in writer.files for seq in read(path)] == [0, 1, 2]


def test_a_metric_that_comes_and_goes_begins_one_csv_file_and_not_one_each_time(tmp_path: Path) -> None:
    """Evaluations between epochs, each flushed on its own, as a slow training does it."""
    writer = FileWriter(tmp_path, CSV, HEADER, 100_000)
    for epoch in range(20):
        writer.write(records(3 * epoch, 2, learning_rate=0.1))
        writer.write([Record(3 * epoch + 2, 1, 2 * epoch, epoch, 0.0, {"eval_loss": 0.5})])
    assert [len(read(path)) for path in writer.files] == [2, 58]


def test_a_new_metric_begins_the_next_csv_file_and_only_that(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path, CSV, HEADER, 100_000)
    writer.write([*records(0, 3), *records(3, 2, overflow=1.0)])
    writer.write(records(5, 2, overflow=0.0))
    writer.write(records(7, 2))
    assert [read(path) for path in writer.files] == [[0, 1, 2, 3, 4, 5, 6, 7, 8]]
    writer.write([*records(9, 1), *records(10, 2, lr=0.1)])
    assert [read(path) for path in writer.files] == [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11]]


def test_each_format_counts_its_own_files(tmp_path: Path) -> None:
    for format_ in FORMATS.values():
        FileWriter(tmp_path, format_, HEADER, 10_000).write(records(0, 1))
    assert names(tmp_path) == ["monitor_00001.csv", "monitor_00001.json", "monitor_00001.pb"]


@all_formats
def test_a_restart_takes_the_next_free_number_and_leaves_old_files_alone(tmp_path: Path, format_: Format) -> None:
    for number in (1, 9, 123_456):
        (tmp_path / f"monitor_{number:05d}{format_.suffix}").write_bytes(b"old")
    (tmp_path / f"monitor_99999{format_.suffix}.bak").write_bytes(b"no monitor file")
    writer = FileWriter(tmp_path, format_, HEADER, 10_000)
    writer.write(records(0, 1))
    assert [path.name for path in writer.files] == [f"monitor_123457{format_.suffix}"]
    assert (tmp_path / f"monitor_123456{format_.suffix}").read_bytes() == b"old"


@all_formats
def test_two_writers_forced_on_the_same_numbers_never_share_a_file(tmp_path: Path, format_: Format) -> None:
    class Blind(FileSystem):
        """Sees an empty directory, as a writer does that looked just before the other one created its file."""

        def names(self, directory: Path) -> list[str]:
            return []

    one = FileWriter(tmp_path, format_, HEADER, 1000, file_system=Blind())
    two = FileWriter(tmp_path, format_, HEADER, 1000, file_system=Blind())
    for start in range(0, 60, 5):
        one.write(records(start, 5))
        two.write(records(1000 + start, 5))
    assert not set(one.files) & set(two.files)
    assert len(one.files) > 1
    assert [seq for path in one.files for seq in read(path)] == list(range(60))
    assert [seq for path in two.files for seq in read(path)] == list(range(1000, 1060))


def test_a_link_under_the_next_name_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep me")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "monitor_00001.json").symlink_to(victim)
    (logs / "monitor_00002.json").symlink_to(tmp_path / "nowhere")
    writer = FileWriter(logs, JSON, HEADER, 10_000)
    writer.write(records(0, 1))
    assert [path.name for path in writer.files] == ["monitor_00003.json"]
    assert victim.read_bytes() == b"keep me"
    assert not (tmp_path / "nowhere").exists()


def fill(writer: FileWriter, files: int) -> None:
    """Write until so many files were begun."""
    seen: set[Path] = set()
    seq = 0
    while len(seen) < files:
        writer.write(records(seq, 5))
        seen.update(writer.files)
        seq += 5


@all_formats
def test_retention_keeps_the_newest_files(tmp_path: Path, format_: Format) -> None:
    (tmp_path / "monitor_00001.other").write_bytes(b"")
    writer = FileWriter(tmp_path, format_, HEADER, 1500, Retention(max_files=3))
    fill(writer, 8)
    kept = [f"monitor_{number:05d}{format_.suffix}" for number in (6, 7, 8)]
    assert names(tmp_path) == sorted([*kept, "monitor_00001.other"])
    assert [path.name for path in writer.files] == kept


@all_formats
def test_retention_by_bytes_counts_the_open_file_as_full(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 1500, Retention(max_total_bytes=5000))
    most = 0
    for seq in range(0, 400, 5):
        writer.write(records(seq, 5))
        most = max(most, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert 2500 < most <= 5000


@all_formats
def test_retention_by_age_uses_the_clock_given(tmp_path: Path, format_: Format) -> None:
    for number in (1, 2, 3):
        path = tmp_path / f"monitor_{number:05d}{format_.suffix}"
        path.write_bytes(b"old")
        os.utime(path, (1000.0 * number, 1000.0 * number))
    writer = FileWriter(tmp_path, format_, HEADER, 10_000, Retention(max_age_s=1500.0), clock=FixedClock(4000.0))
    writer.write(records(0, 1))
    assert names(tmp_path) == [f"monitor_00003{format_.suffix}", f"monitor_00004{format_.suffix}"]


def test_retention_never_removes_the_open_file_or_other_formats(tmp_path: Path) -> None:
    other = FileWriter(tmp_path, CSV, HEADER, 10_000)
    other.write(records(0, 1))
    writer = FileWriter(tmp_path, JSON, HEADER, 1500, Retention(max_files=1, max_total_bytes=1, max_age_s=0.0))
    fill(writer, 4)
    assert names(tmp_path) == ["monitor_00001.csv", "monitor_00004.json"]


@all_formats
def test_a_file_deleted_while_open_is_replaced_by_the_next(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 10_000)
    writer.write(records(0, 5))
    writer.files[0].unlink()
    writer.write(records(5, 5))
    assert [path.name for path in writer.files] == [f"monitor_00002{format_.suffix}"]
    assert read(writer.files[0]) == [5, 6, 7, 8, 9]


@all_formats
def test_a_directory_deleted_while_in_use_is_made_again(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path / "a" / "logs", format_, HEADER, 10_000)
    writer.write(records(0, 5))
    shutil.rmtree(tmp_path / "a")
    writer.write(records(5, 5))
    writer.sync()
    assert names(tmp_path / "a" / "logs") == [f"monitor_00002{format_.suffix}"]
    assert read(writer.files[0]) == [5, 6, 7, 8, 9]


@all_formats
def test_a_record_that_cannot_be_encoded_says_how_many_before_it_are_written(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 100_000)
    good = records(0, 20)
    writer.write(good[:4])
    bad = good[0]._replace(seq=99, step=2**63, scalars={"a new metric": 1.0})
    with pytest.raises(FormatError, match="record seq 99") as caught:
        writer.write([*good[4:], bad])
    written = caught.value.acknowledged
    assert (written > 0) == (format_.name == "csv"), "csv alone splits the batch, before the new metric"
    assert [seq for path in writer.files for seq in read(path)] == list(range(4 + written))
    writer.write([*good[4 + written :], *records(20, 1)])
    assert [seq for path in writer.files for seq in read(path)] == list(range(21))


@all_formats
def test_a_forked_child_cannot_write_to_its_parents_file(tmp_path: Path, format_: Format) -> None:
    writer = FileWriter(tmp_path, format_, HEADER, 10_000)
    writer.write(records(0, 1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for action in (lambda: writer.write(records(1, 1)), writer.sync):
                try:
                    action()
                except WriteError as error:
                    status = 0 if "this process was forked" in str(error) else 2
                else:
                    status = 3
                    break
            writer.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.write(records(1, 1))
    writer.close()
    assert read(writer.files[0]) == [0, 1]
    assert names(tmp_path) == [f"monitor_00001{format_.suffix}"]


class Recording(FileSystem):
    """Notes what is asked of the disk."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sync(self, descriptor: int) -> None:
        self.calls.append("sync")
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self.calls.append("sync_directory")
        super().sync_directory(path)


def test_sync_makes_file_and_name_durable_once(tmp_path: Path) -> None:
    system = Recording()
    writer = FileWriter(tmp_path, PROTOBUF, HEADER, 10_000, file_system=system)
    writer.sync()
    assert system.calls == [], "there is nothing yet"
    writer.write(records(0, 1))
    assert system.calls == [], "a plain write waits for no disk"
    writer.sync()
    assert system.calls == ["sync", "sync_directory"]
    writer.sync()
    assert system.calls == ["sync", "sync_directory"], "nothing new to sync"
    writer.write(records(1, 1))
    writer.close()
    assert system.calls == ["sync", "sync_directory", "sync"], "the name is durable already"


def test_a_writer_may_go_on_after_close(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path, JSON, HEADER, 10_000)
    writer.write(records(0, 2))
    writer.close()
    writer.close()
    writer.write(records(2, 2))
    assert [read(path) for path in writer.files] == [[0, 1], [2, 3]]
