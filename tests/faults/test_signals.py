"""SIGTERM, SIGINT and uncaught errors: the last records are written, ``run.json`` says why, the exit is what it would have been."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from monitor_core.config import from_mapping
from monitor_core.logs import load_monitor_logs
from monitor_core.manifest import Attempt, from_json
from monitor_core.monitor import Recorder

LIVES_ON_S = 4.5  # a process that has not died by then was held up; closing takes milliseconds

PRELUDE = """
import ctypes, os, signal, sys, threading, time
from monitor_core import signals
from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder
from monitor_core.writers.file import FileSystem

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background

def recorder(folder, **more):
    system = more.pop("file_system", None)
    one = Recorder(from_mapping({"log_dir": folder, "name": "signal", "max_file_size": 10**9, **more}), file_system=system)
    one.open()
    return one

def train(*recorders, pause=0.001):
    step = 0
    while True:
        for one in recorders:
            if not one.is_open:
                one.open()  # as the Monitor does at each step
            one.record(step, 1, {"loss": float(step)})
        step += 1
        if step == 20:
            print("ready", flush=True)
        if pause:
            time.sleep(pause)

"""


class Child:
    """A training in a process of its own."""

    started: ClassVar[list[Child]] = []

    def __init__(self, code: str, *arguments: object) -> None:
        command = [sys.executable, "-W", "ignore", "-c", PRELUDE + code, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.started.append(self)
        self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, within_s: float = LIVES_ON_S) -> tuple[int, str]:
        """Exit status and what was printed on stderr."""
        try:
            _, errors = self.process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            pytest.fail("the process lives on")
        return self.process.returncode, errors


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    yield
    for child in Child.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)  # with the workers it forked
        child.process.communicate()
    Child.started.clear()


def attempts(folder: Path) -> list[Attempt]:
    return list(from_json(json.loads((folder / "run.json").read_text())).attempts)


def assert_stopped(folder: Path, reason: str, status: str = "stopped") -> Any:
    """One attempt, which says how it ended, and every record of it; gives the records."""
    (only,) = attempts(folder)
    table = load_monitor_logs(folder)
    assert (only.status, only.reason) == (status, reason)
    assert only.ended is not None
    assert table["seq"].tolist() == list(range(len(table)))
    assert only.dropped == 0
    assert len(table) == (only.last_seq or 0) + 1 >= 20
    assert table.attrs["problems"] == []
    return table


def test_sigterm_writes_the_last_records_and_kills_as_ever(tmp_path: Path) -> None:
    child = Child("train(recorder(sys.argv[1], collect_freq=10**6))", tmp_path)
    time.sleep(0.3)
    before = time.time()
    child.tell(signal.SIGTERM)
    assert child.end() == (-signal.SIGTERM, "")
    table = assert_stopped(tmp_path, "SIGTERM")
    assert table["timestamp"].iloc[-1] > before - 0.1, "up to the signal, not up to the last flush"


def test_sigterm_at_any_moment_never_hangs(tmp_path: Path) -> None:
    """Without a pause the main thread is nearly always inside the recorder, and often holds one of its locks."""
    source = random.Random(5)
    for turn in range(8):
        folder = tmp_path / str(turn)
        child = Child("train(recorder(sys.argv[1], collect_freq=1), pause=0)", folder)
        time.sleep(source.random() * 0.05)
        child.tell(signal.SIGTERM)
        assert child.end() == (-signal.SIGTERM, ""), turn
        (only,) = attempts(folder)
        assert (only.status, only.reason) == ("stopped", "SIGTERM")


def test_a_training_that_hangs_in_c_code_dies_of_sigterm_too(tmp_path: Path) -> None:
    """Python never gets to run its handler there; a plain Python handler would make the process immortal."""
    child = Child(
        """
one = recorder(sys.argv[1], collect_freq=10**6)
for step in range(20):
    one.record(step, 1, {"loss": 1.0})
print("ready", flush=True)
mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
library.pthread_mutex_lock(mutex)
""",
        tmp_path,
    )
    time.sleep(0.1)
    child.tell(signal.SIGTERM)
    assert child.end() == (-signal.SIGTERM, "")
    assert len(assert_stopped(tmp_path, "SIGTERM")) == 20


@pytest.mark.parametrize(
    "obstacle",
    [
        "one = recorder(sys.argv[1], file_system=Hung())\ntrain(one)",
        "one = recorder(sys.argv[1])\nwith one._done:\n    train(one)",
    ],
    ids=["a disk that hangs", "a lock that is never released"],
)
def test_nothing_holds_sigterm_up_for_long(tmp_path: Path, obstacle: str) -> None:
    code = """
class Hung(FileSystem):
    def write_at(self, *arguments):
        time.sleep(3600)

signals.SIGTERM_TIMEOUT_S = 0.5
"""
    child = Child(code + obstacle, tmp_path)
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    assert attempts(tmp_path)[0].status in ("running", "stopped")


def test_all_open_recorders_are_closed(tmp_path: Path) -> None:
    child = Child("train(*map(recorder, sys.argv[1:]))", tmp_path / "a", tmp_path / "b")
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    assert_stopped(tmp_path / "a", "SIGTERM")
    assert_stopped(tmp_path / "b", "SIGTERM")


def test_sigterm_while_the_training_closes_waits_for_it(tmp_path: Path) -> None:
    """The main thread is in ``close`` already; to kill it there would leave "running" behind."""
    child = Child(
        """
class Slow(FileSystem):
    def close(self, descriptor):
        print("closing", flush=True)
        time.sleep(0.7)
        super().close(descriptor)

one = recorder(sys.argv[1], file_system=Slow())
for step in range(20):
    one.record(step, 1, {"loss": 1.0})
print("ready", flush=True)
one.close("finished")
time.sleep(60)
""",
        tmp_path,
    )
    assert child.line() == "closing"
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    (only,) = attempts(tmp_path)
    assert (only.status, only.last_seq) == ("finished", 19)


def test_a_handler_that_comes_later_decides_alone(tmp_path: Path) -> None:
    child = Child(
        """
one = recorder(sys.argv[1])
def leave(number, frame):
    print("theirs", flush=True)
signal.signal(signal.SIGTERM, leave)
train(one)
""",
        tmp_path,
    )
    for _ in range(2):
        child.tell(signal.SIGTERM)
        assert child.line() == "theirs"
    time.sleep(0.2)
    assert child.process.poll() is None, "the training goes on"
    assert attempts(tmp_path)[0].status == "running"


def test_a_later_handler_that_calls_the_one_before_gets_the_default(tmp_path: Path) -> None:
    code = """
one = recorder(sys.argv[1])
before = signal.getsignal(signal.SIGTERM)
def chained(number, frame):
    print("theirs", flush=True)
    before(number, frame)
signal.signal(signal.SIGTERM, chained)
if len(sys.argv) > 2:
    for step in range(20):
        one.record(step, 1, {"loss": 1.0})
    one.close("stopped", "SIGTERM")
    print("ready", flush=True)
    time.sleep(60)
train(one)
"""
    for some in (Child(code, tmp_path / "open"), Child(code, tmp_path / "closed", "closed")):
        some.tell(signal.SIGTERM)
        assert some.line() == "theirs"
        assert some.end()[0] == -signal.SIGTERM
    assert_stopped(tmp_path / "open", "SIGTERM")
    assert_stopped(tmp_path / "closed", "SIGTERM")


def test_the_signal_still_comes_through_when_another_takes_the_wakeup_descriptor(tmp_path: Path) -> None:
    """asyncio does so when a handler is added to its loop."""
    child = Child(
        """
one = recorder(sys.argv[1])
other = os.pipe()
os.set_blocking(other[1], False)
signal.set_wakeup_fd(other[1])
train(one)
""",
        tmp_path,
    )
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    assert_stopped(tmp_path, "SIGTERM")


def test_a_forked_worker_dies_of_sigterm_alone(tmp_path: Path) -> None:
    """Data set workers are ended by SIGTERM; neither they nor their parent may take it for the training's end."""
    child = Child(
        """
one = recorder(sys.argv[1])
for number in range(2):
    worker = os.fork()
    if worker == 0:
        if number:
            train(recorder(sys.argv[2]))
        time.sleep(60)
    time.sleep(1.0)
    os.kill(worker, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM
print(signal.getsignal(signal.SIGTERM), flush=True)
train(one)
""",
        tmp_path / "parent",
        tmp_path / "worker",
    )
    assert child.line().startswith("<bound method SigtermWatch")
    assert_stopped(tmp_path / "worker", "SIGTERM")
    assert child.line() == "ready"
    assert attempts(tmp_path / "parent")[0].status == "running"
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    assert_stopped(tmp_path / "parent", "SIGTERM")


@pytest.mark.parametrize(
    ("code", "number", "exit_status", "status", "reason"),
    [
        ("train(recorder(sys.argv[1]))", signal.SIGINT, -signal.SIGINT, "stopped", "KeyboardInterrupt"),
        ("try:\n    train(recorder(sys.argv[1]))\nexcept KeyboardInterrupt:\n    raise ValueError from None",
         signal.SIGINT, 1, "failed", "ValueError"),
        ("try:\n    train(recorder(sys.argv[1]))\nexcept KeyboardInterrupt:\n    sys.exit(3)",
         signal.SIGINT, 3, "stopped", "the program ended before train_end"),
    ],
    ids=["KeyboardInterrupt", "ValueError", "sys.exit"],
)  # fmt: skip
def test_an_uncaught_exception_is_the_reason(
    tmp_path: Path, code: str, number: int, exit_status: int, status: str, reason: str
) -> None:
    child = Child(code, tmp_path)
    child.tell(number)
    assert child.end()[0] == exit_status
    assert_stopped(tmp_path, reason, status)


def one_recorder(folder: Path) -> Recorder:
    one = Recorder(from_mapping({"log_dir": folder, "name": "here"}))
    one.open()
    return one


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Puts the handler back."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def wait_for_the_watch_to_end() -> None:
    deadline = time.monotonic() + 5
    while any(thread.name == "msmon-sigterm" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_sigterm_is_given_back_with_the_last_recorder(tmp_path: Path, sigterm: None) -> None:
    wait_for_the_watch_to_end()
    descriptors = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208
    for _ in range(3):
        first, second = one_recorder(tmp_path / "1"), one_recorder(tmp_path / "2")
        assert callable(signal.getsignal(signal.SIGTERM))
        first.close()
        assert callable(signal.getsignal(signal.SIGTERM)), "one is open still"
        second.close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
    wait_for_the_watch_to_end()
    assert not any(thread.name.startswith("msmon") for thread in threading.enumerate())
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda number, frame: None], ids=["ignored", "handled"])
def test_a_handler_that_is_there_stays(tmp_path: Path, sigterm: None, theirs: Any) -> None:
    signal.signal(signal.SIGTERM, theirs)
    one = one_recorder(tmp_path)
    assert signal.getsignal(signal.SIGTERM) == theirs
    one.close()
    assert signal.getsignal(signal.SIGTERM) == theirs


def test_a_handler_that_came_later_stays_after_the_close(tmp_path: Path, sigterm: None) -> None:
    one = one_recorder(tmp_path)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    one.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_a_handler_of_a_c_library_is_seen(tmp_path: Path) -> None:
    """``signal.getsignal`` knows only what Python installed."""
    child = Child(
        """
library = ctypes.CDLL(None)
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("theirs", flush=True))
library.signal(15, handler)
assert signal.getsignal(15) == signal.SIG_DFL
train(recorder(sys.argv[1]), pause=0.01)
""",
        tmp_path,
    )
    child.tell(signal.SIGTERM)
    assert child.line() == "theirs"


def test_nothing_is_installed_from_another_thread_or_over_a_wakeup_descriptor(tmp_path: Path, sigterm: None) -> None:
    made: list[Recorder] = []
    thread = threading.Thread(target=lambda: made.append(one_recorder(tmp_path / "thread")))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    made[0].close()
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    try:
        one = one_recorder(tmp_path / "wakeup")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        one.close()
    finally:
        assert signal.set_wakeup_fd(-1) == write
        os.close(read)
        os.close(write)


def test_a_close_in_another_thread_leaves_the_watch_which_then_only_kills(tmp_path: Path) -> None:
    child = Child(
        """
one = recorder(sys.argv[1])
for step in range(20):
    one.record(step, 1, {"loss": 1.0})
thread = threading.Thread(target=one.close)
thread.start()
thread.join()
print("ready", flush=True)
time.sleep(60)
""",
        tmp_path,
    )
    child.tell(signal.SIGTERM)
    assert child.end()[0] == -signal.SIGTERM
    assert attempts(tmp_path)[0].status == "finished"
