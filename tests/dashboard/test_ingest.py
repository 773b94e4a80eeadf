"""From the log directory into the store: growing, rotated, torn, replaced, hostile and missing files."""

from __future__ import annotations

import math
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard.ingest import tail
from dashboard.ingest.catalog import RunInfo, status_of
from dashboard.ingest.discover import discover
from dashboard.ingest.ingester import Ingester
from dashboard.ingest.watch import Watcher
from dashboard.overlays import Overlays, marks
from dashboard.store.base import SeriesKey
from dashboard.store.table import TableStore
from monitor_core.formats import FORMATS
from monitor_core.manifest import Attempt, Manifest
from monitor_core.record import Record

FORMAT_NAMES = tuple(FORMATS)


class Reader:
    """An ingester without its thread."""

    def __init__(self, *roots: Path) -> None:
        self.store, self.overlays = TableStore(), Overlays()
        self.ingester = Ingester(roots, self.store, self.overlays)

    def scan(self) -> None:
        self.ingester.scan_once()

    def run(self, name: str = ".") -> RunInfo:
        return next(run for run in self.ingester.catalog().runs if run.name == name)

    def steps(self, name: str = ".", rank: int = 0) -> list[int]:
        key = SeriesKey(name, rank)
        return self.store.snapshot().column(key, "loss")[1].tolist() if key in self.store.snapshot().series() else []


def rec(seq: int, attempt: int = 1, **scalars: float) -> Record:
    return Record(seq, attempt, seq, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_growing_rotated_run_is_read_once(tmp_path: Path, write: Callable[..., object], name: str) -> None:
    reader = Reader(tmp_path)
    writer = write(tmp_path, [rec(seq) for seq in range(100)], name, 20_000)
    reader.scan()
    assert reader.steps() == list(range(100))
    for start in range(100, 1000, 50):
        writer.write([rec(seq) for seq in range(start, start + 50)])  # type: ignore[attr-defined]
        reader.scan()
        assert reader.steps() == list(range(start + 50))
    assert len(reader.run().files) > 1
    assert reader.run().problem_count == 0
    assert not reader.run().loading


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_100_000_records_are_read_while_they_are_written(
    tmp_path: Path, write: Callable[..., object], name: str
) -> None:
    odd = random.Random(7)
    values = [
        odd.choice([math.nan, math.inf, -math.inf]) if odd.random() < 0.02 else odd.random() for _ in range(100_000)
    ]
    records = [rec(seq, loss=value, grad_norm=-value) for seq, value in enumerate(values)]
    reader = Reader(tmp_path)
    writing = threading.Thread(target=lambda: write(tmp_path, records, name, 1_000_000).close())  # type: ignore[attr-defined]
    writing.start()
    looks = 0
    while writing.is_alive():
        reader.scan()
        looks += 1
        steps = reader.steps()
        assert steps == list(range(len(steps)))
    reader.scan()
    assert looks > 3
    snapshot = reader.store.snapshot()
    for metric, sign in (("loss", 1), ("grad_norm", -1)):
        _, step, value = snapshot.column(SeriesKey(".", 0), metric)
        assert step.tolist() == list(range(100_000))
        assert np.array_equal(value, sign * np.array(values), equal_nan=True)
    assert len(reader.run().files) >= 5
    assert reader.run().problem_count == 0
    assert snapshot.extent(SeriesKey(".", 0)).missing == 0


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_a_file_that_grows_byte_by_byte_shows_whole_records_only(
    tmp_path: Path, write: Callable[..., object], name: str
) -> None:
    writer = write(tmp_path / "whole", [rec(seq) for seq in range(3)], name)
    path = writer.files[0]  # type: ignore[attr-defined]
    data = path.read_bytes()
    (tmp_path / "growing").mkdir()
    target = tmp_path / "growing" / path.name
    reader = Reader(tmp_path / "growing")
    seen = 0
    for size in range(len(data) + 1):
        target.write_bytes(data[:size])
        reader.scan()
        steps = reader.steps()
        assert steps == list(range(len(steps)))
        assert len(steps) >= seen
        seen = len(steps)
    assert seen == 3
    assert reader.run().problem_count == 0


def test_a_torn_end_is_reported_once_the_next_file_is_there(tmp_path: Path, write: Callable[..., object]) -> None:
    path = write(tmp_path, [rec(seq) for seq in range(5)]).files[0]  # type: ignore[attr-defined]
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b',\n{"seq":5,"attempt":1,"st')
    reader = Reader(tmp_path)
    reader.scan()
    assert reader.steps() == [0, 1, 2, 3, 4]
    assert reader.run().problem_count == 0, "a cut end of the newest file is ordinary: its writer may go on"
    write(tmp_path, [rec(seq) for seq in range(5, 8)])
    os.utime(path, (1, 1))
    reader.scan()
    reader.scan()
    assert reader.steps() == list(range(8))
    assert [(p.file, p.kind) for p in reader.run().problems] == [("monitor_00001.json", "truncated")]


def test_a_corrupt_file_hides_neither_its_run_nor_another(tmp_path: Path, write: Callable[..., object]) -> None:
    write(tmp_path / "good", [rec(seq) for seq in range(10)])
    path = write(tmp_path / "bad", [rec(seq) for seq in range(10)]).files[0]  # type: ignore[attr-defined]
    lines = path.read_bytes().split(b"\n")
    lines[4] = b'{"seq":3,"attempt":1,"step":\xff\xfe garbage'
    path.write_bytes(b"\n".join(lines))
    (tmp_path / "bad" / "monitor_00002.pb").write_bytes(os.urandom(5000))
    (tmp_path / "bad" / "run.json").write_text("no json")
    reader = Reader(tmp_path)
    reader.scan()
    assert reader.steps("good") == list(range(10))
    assert reader.steps("bad") == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert reader.store.snapshot().extent(SeriesKey("bad", 0)).missing == 1
    assert {problem.file for problem in reader.run("bad").problems} == {
        "monitor_00001.json",
        "monitor_00002.pb",
        "run.json",
    }
    line = next(problem for problem in reader.run("bad").problems if problem.file == "monitor_00001.json")
    assert line.offset == len(b"\n".join(lines[:4])) + 1
    assert reader.run("good").problem_count == 0


def test_copies_hard_links_and_rereads_add_nothing_twice(tmp_path: Path, write: Callable[..., object]) -> None:
    path = write(tmp_path, [rec(seq) for seq in range(20)]).files[0]  # type: ignore[attr-defined]
    shutil.copy(path, tmp_path / "monitor_00007.json")
    os.link(path, tmp_path / "monitor_00008.json")
    reader = Reader(tmp_path)
    reader.scan()
    assert reader.steps() == list(range(20))
    assert reader.run().duplicates == 40


def test_a_shrunk_and_a_replaced_file_are_reported_and_read_again(tmp_path: Path, write: Callable[..., object]) -> None:
    path = write(tmp_path, [rec(seq) for seq in range(20)], "csv").files[0]  # type: ignore[attr-defined]
    reader = Reader(tmp_path)
    reader.scan()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reader.scan()
    assert [problem.kind for problem in reader.run().problems] == ["shrunk"]
    path.unlink()
    other = write(tmp_path / "elsewhere", [rec(seq, 2, other=1.0, loss=float(seq)) for seq in range(200)], "csv").files[
        0
    ]  # type: ignore[attr-defined]
    other.replace(path)
    reader.scan()
    assert [problem.kind for problem in reader.run().problems] == ["shrunk", "replaced"]
    assert reader.steps() == [*range(20), *range(200)]


def test_files_that_come_late_take_their_place(tmp_path: Path, write: Callable[..., object]) -> None:
    files = write(tmp_path / "all", [rec(seq) for seq in range(300)], "json", 12_000).files  # type: ignore[attr-defined]
    assert len(files) > 2
    (tmp_path / "run").mkdir()
    reader = Reader(tmp_path / "run")
    for path in reversed(files):
        shutil.copy(path, tmp_path / "run")
        reader.scan()
    assert reader.steps() == list(range(300))
    assert reader.store.snapshot().extent(SeriesKey(".", 0)).missing == 0


def test_what_is_no_regular_file_inside_the_root_is_left_alone(tmp_path: Path, write: Callable[..., object]) -> None:
    root = tmp_path / "logs"
    write(root / "run", [rec(0)])
    os.mkfifo(root / "run" / "monitor_00002.json")
    (root / "run" / "monitor_00003.json").mkdir()
    secret = write(tmp_path / "secret", [rec(seq) for seq in range(9)])
    (root / "run" / "monitor_00004.json").symlink_to(secret.files[0])  # type: ignore[attr-defined]
    (root / "linked").symlink_to(tmp_path / "secret")
    started = time.monotonic()
    reader = Reader(root)
    reader.scan()
    assert time.monotonic() - started < 5
    assert [run.name for run in reader.ingester.catalog().runs] == ["run"]
    assert reader.steps("run") == [0]


def test_runs_are_named_by_their_path_and_ranks_belong_to_their_run(
    tmp_path: Path, write: Callable[..., object]
) -> None:
    for name in ("a", "a/b", "deep/er/run"):
        write(tmp_path / name, [rec(0)])
    for rank in (0, 3, 12):
        write(tmp_path / "many" / f"rank_{rank}", [rec(rank)])
    found = discover(tmp_path)
    assert [run.name for run in found.runs] == ["a", "a/b", "deep/er/run", "many"]
    assert [file.rank for file in found.runs[-1].files] == [0, 3, 12]
    reader = Reader(tmp_path)
    reader.scan()
    assert reader.run("many").ranks == (0, 3, 12)
    assert reader.steps("many", 12) == [12]


def test_several_log_directories_keep_equal_names_apart(tmp_path: Path, write: Callable[..., object]) -> None:
    for root in ("x/logs", "y/logs"):
        write(tmp_path / root / "run", [rec(0)])
    reader = Reader(tmp_path / "x" / "logs", tmp_path / "y" / "logs")
    reader.scan()
    runs = reader.ingester.catalog().runs
    assert [run.name for run in runs] == ["logs#1/run", "logs#2/run"]
    assert len({run.key for run in runs}) == 2


def test_a_log_directory_that_comes_and_goes(tmp_path: Path, write: Callable[..., object]) -> None:
    root = tmp_path / "later"
    reader = Reader(root)
    reader.scan()
    assert [problem.code for problem in reader.ingester.catalog().roots] == ["missing"]
    root.mkdir()
    reader.scan()
    assert [problem.code for problem in reader.ingester.catalog().roots] == ["empty"]
    write(root / "run", [rec(0)])
    reader.scan()
    assert reader.steps("run") == [0]
    shutil.rmtree(root / "run")
    reader.scan()
    assert reader.steps("run") == [0], "away for a moment, perhaps being replaced"
    reader.scan()
    assert reader.ingester.catalog().runs == ()
    assert reader.store.snapshot().series() == ()


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    reader.ingester._interval_s = 0.1
    reader.ingester.start()
    yield reader
    reader.ingester.stop()


def until(condition: Callable[[], bool], reader: Reader, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        reader.ingester.wait(reader.ingester.catalog().version, 0.2)


def test_the_thread_follows_without_any_file_event(
    tmp_path: Path, following: Reader, write: Callable[..., object]
) -> None:
    following.ingester._watcher.tend = lambda: None  # type: ignore[method-assign]
    following.ingester._watcher.stop()
    writer = write(tmp_path, [rec(seq) for seq in range(10)])
    until(lambda: len(following.steps()) == 10, following)
    writer.write([rec(10)])  # type: ignore[attr-defined]
    until(lambda: len(following.steps()) == 11, following)


def test_the_thread_outlives_a_defect(
    tmp_path: Path, following: Reader, write: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    scan = following.ingester._scan

    def broken() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("a defect")
        scan()

    monkeypatch.setattr(following.ingester, "_scan", broken)
    write(tmp_path, [rec(0)])
    until(lambda: following.steps() == [0], following)
    assert len(calls) >= 3


def test_a_dead_observer_is_replaced(tmp_path: Path) -> None:
    wake = threading.Event()
    watcher = Watcher([tmp_path], wake)
    watcher.tend()
    assert watcher.state == "watching"
    dead = watcher._observer
    assert dead is not None
    dead.stop()
    dead.join()
    watcher.tend()
    assert watcher._observer is not dead
    (tmp_path / "monitor_00001.json").write_text("[\n]")
    assert wake.wait(10)
    watcher.stop()


def test_exhausted_watches_leave_the_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dashboard.ingest import watch

    class Refusing:
        def schedule(self, *args: object, **kwargs: object) -> None:
            raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr(watch, "Observer", Refusing)
    watcher = Watcher([tmp_path], threading.Event())
    watcher.tend()
    assert watcher.state == "timer only: inotify watch limit reached"


def test_findings_do_not_depend_on_how_the_records_arrived(tmp_path: Path, write: Callable[..., object]) -> None:
    wild = [
        rec(seq, loss=(0.2, 1.8)[seq % 2] if 400 < seq < 700 else 1.0, step_time=1.0, grad_norm=1.0)
        for seq in range(3000)
    ]
    writer = write(tmp_path / "a", wild)
    at_once = Reader(tmp_path / "a")
    at_once.scan()
    (tmp_path / "b").mkdir()
    slowly = Reader(tmp_path / "b")
    data = writer.files[0].read_bytes()  # type: ignore[attr-defined]
    for size in [*range(1000, len(data), 40_000), len(data)]:
        (tmp_path / "b" / "monitor_00001.json").write_bytes(data[:size])
        slowly.scan()
    found = [item.finding for item in at_once.overlays.findings(".")]
    assert [(f.kind, f.first_step) for f in found] == [("loss_oscillation", found[0].first_step)]
    assert 400 < found[0].first_step < 500
    assert [item.finding for item in slowly.overlays.findings(".")] == found
    english, chinese = marks(at_once.overlays.findings("."), "en")[0], marks(at_once.overlays.findings("."), "zh")[0]
    assert english["title"] == "Loss oscillates"
    assert chinese["title"] == "Loss 振荡"
    assert english["first"] == found[0].first_step


def test_the_status_says_only_what_can_be_true() -> None:
    now = 1e9

    def status(attempt: Attempt | None, modified: float = now) -> str:
        return status_of(Manifest("x", attempts=(attempt,) if attempt else ()), modified, now)[0]

    here = os.uname().nodename
    assert status(Attempt(1, 0.0, status="finished")) == "finished"
    assert status(Attempt(1, time.time(), host=here, pid=os.getpid()), now - 7200) == "running"
    assert status(Attempt(1, 0.0, host=here, pid=2**22 + 1)) == "vanished"
    assert status(Attempt(1, 0.0, host="elsewhere", pid=1)) == "running"
    assert status(Attempt(1, 0.0, host="elsewhere", pid=1), now - 7200) == "vanished"
    assert status(Attempt(1, 0.0, host=here, pid=os.getpid())) == "running", "the clock was set, perhaps"
    assert status(Attempt(1, 0.0, host=here, pid=os.getpid()), now - 7200) == "vanished", "the number is another's now"
    with subprocess.Popen(["true"]) as dead:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        assert status(Attempt(1, time.time(), host=here, pid=dead.pid)) == "vanished", (
            "dead, but nobody has waited for it"
        )
    assert status(None) == "running"
    assert status(None, now - 7200) == "unknown"


def test_a_json_file_that_grows_between_two_looks_at_it_is_no_other_file() -> None:
    """The first bytes are looked at before the data; an empty array's closing bracket may be gone by then."""
    empty = b"[\n]"
    grown = (
        b'[\n{"seq":0,"attempt":1,"step":0,"timestamp":1,"loss":1.0},\n{"seq":1,"attempt":1,"step":1,"timestamp":1}\n]'
    )
    state, problems = tail.check(tail.start(FORMATS["json"]), len(empty), empty)
    state, batch, found = tail.feed(state, grown)
    again, later = tail.check(state, len(grown), grown[: tail.FINGERPRINT_BYTES])
    assert (len(batch), problems, found, later) == (2, (), (), ())
    assert again.offset == state.offset
    replaced, later = tail.check(state, len(grown), b"[\n" + b"x" * 62)
    assert [problem.kind for problem in later] == ["replaced"]
    assert replaced.offset == 0
