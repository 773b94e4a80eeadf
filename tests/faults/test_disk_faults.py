"""The disk says no, the power fails, the process dies: every acknowledged record is read back exactly once.

Each fault is injected at each system call in turn, because random faults rarely hit the interesting one.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from monitor_core.errors import WriteError
from monitor_core.formats import FORMATS, format_for, parse_file_name
from monitor_core.formats.base import Format, Problem
from monitor_core.logs import load_monitor_logs
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileSystem, FileWriter

HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
BATCH, BATCHES = 4, 8
#: A few batches to a file, so that rotation is among the calls that fail.
FILE_BYTES = {"json": 1300, "csv": 600, "protobuf": 1000}
all_formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)


def record(seq: int) -> Record:
    loss = (math.nan, math.inf, -0.0, seq / 7)[seq % 4]
    return Record(seq, 1, seq, None, float(seq), {"loss": loss, "step_time": seq / 10})


class Crash(BaseException):
    """The process is gone; nothing of it runs any more."""


class FaultySystem(FileSystem):
    """A file system whose ``number``-th call (from 0) does what ``fault`` says; the others are the machine's."""

    def __init__(self, number: int, fault: Callable[[FaultySystem, str, tuple[Any, ...]], Any]) -> None:
        self.number = number
        self.fault = fault
        self.calls: list[str] = []
        self.files: dict[int, Path] = {}
        self.durable: dict[Path, bytes] = {}
        """Contents that a power failure leaves, by path."""
        self.durable_names: set[Path] = set()

    left_open: ClassVar[set[int]] = set()
    """Descriptors that nobody will close any more: those of writers that crashed."""

    def plain(self, name: str, arguments: tuple[Any, ...]) -> Any:
        answer = getattr(FileSystem, name)(self, *arguments)
        if name == "create":
            self.left_open.add(answer)
        elif name == "close":
            self.left_open.discard(arguments[0])
        return answer

    def call(self, name: str, *arguments: Any) -> Any:
        self.calls.append(name)
        action = self.fault if len(self.calls) - 1 == self.number else FaultySystem.plain
        return action(self, name, arguments)

    def create(self, path: Path) -> int:
        descriptor: int = self.call("create", path)
        self.files[descriptor] = path
        return descriptor

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        return self.call("write_at", descriptor, data, offset)  # type: ignore[no-any-return]

    def sync(self, descriptor: int) -> None:
        self.call("sync", descriptor)
        path = self.files[descriptor]
        self.durable[path] = path.read_bytes()

    def sync_directory(self, path: Path) -> None:
        self.call("sync_directory", path)
        self.durable_names = set(path.iterdir())

    def size(self, descriptor: int) -> int:
        return self.call("size", descriptor)  # type: ignore[no-any-return]

    def is_deleted(self, descriptor: int) -> bool:
        return self.call("is_deleted", descriptor)  # type: ignore[no-any-return]

    def close(self, descriptor: int) -> None:
        self.call("close", descriptor)

    def names(self, directory: Path) -> list[str]:
        return self.call("names", directory)  # type: ignore[no-any-return]

    def make_directory(self, path: Path) -> None:
        self.call("make_directory", path)

    def remove(self, path: Path) -> None:
        self.call("remove", path)


@pytest.fixture(autouse=True)
def close_what_crashes_left() -> Iterator[None]:
    """In a process of its own the kernel would do it; here some thousand descriptors would add up."""
    yield
    while FaultySystem.left_open:
        os.close(FaultySystem.left_open.pop())


def fails(code: int) -> Callable[[FaultySystem, str, tuple[Any, ...]], Any]:
    def fault(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
        raise OSError(code, errno.errorcode[code])

    return fault


def writes_half_then_fails(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    """ENOSPC as it really comes: first a short write, then the error."""
    if name != "write_at":
        return system.plain(name, arguments)
    descriptor, data, offset = arguments
    FileSystem.write_at(system, descriptor, data[: len(data) // 2], offset)
    system.number = len(system.calls)
    system.fault = fails(errno.ENOSPC)
    return len(data) // 2


def writes_all_but_says_it_failed(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    found = system.plain(name, arguments)
    if name in ("write_at", "sync", "sync_directory"):
        raise OSError(errno.EIO, "EIO")
    return found


def writes_one_byte(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    """A short write that is no error: the rest must follow."""
    if name != "write_at":
        return system.plain(name, arguments)
    system.number += 1
    descriptor, data, offset = arguments
    return FileSystem.write_at(system, descriptor, data[:1], offset)


def writes_nothing(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    return 0 if name == "write_at" else system.plain(name, arguments)


FAULTS = {
    "ENOSPC": fails(errno.ENOSPC),
    "EIO": fails(errno.EIO),
    "EMFILE": fails(errno.EMFILE),
    "short write, then ENOSPC": writes_half_then_fails,
    "short writes, no error": writes_one_byte,
    "zero bytes written": writes_nothing,
    "done, but said to have failed": writes_all_but_says_it_failed,
}
DURABILITY_FAULTS = ("ENOSPC", "EIO", "short write, then ENOSPC", "done, but said to have failed")


class Trainer:
    """Writes batches and keeps what is not acknowledged for the next try, as the recorder does."""

    def __init__(self, directory: Path, format_: Format, system: FileSystem, *, durable: bool = False) -> None:
        self.writer = FileWriter(directory, format_, HEADER, FILE_BYTES[format_.name], file_system=system)
        self.acknowledged: list[Record] = []
        self.durable: list[Record] = []
        """Records that a successful sync has promised to keep."""
        self.errors: list[WriteError] = []
        self._every_batch_durable = durable

    def run(self) -> None:
        pending: list[Record] = []
        for number in range(BATCHES):
            pending += map(record, range(number * BATCH, (number + 1) * BATCH))
            pending = self.write(pending)
            if self._every_batch_durable or number == BATCHES // 2:
                self.sync()
        for _ in range(3):
            pending = self.write(pending)
        assert pending == [], "one fault is overcome by trying again"

    def write(self, records: list[Record]) -> list[Record]:
        if not records:
            return records
        try:
            self.writer.write(records)
            done = len(records)
        except WriteError as error:
            self.errors.append(error)
            done = error.acknowledged
        self.acknowledged += records[:done]
        return records[done:]

    def sync(self) -> None:
        try:
            self.writer.sync()
        except WriteError as error:
            self.errors.append(error)
        else:
            self.durable = list(self.acknowledged)


def read_all(contents: dict[Path, bytes]) -> tuple[dict[int, str], list[Problem]]:
    """Records by seq over all files, each in full; a record that stands twice must stand the same."""
    found: dict[int, str] = {}
    problems: list[Problem] = []
    for path in sorted(contents):
        format_ = format_for(path.name)
        assert format_ is not None
        _, batch, some = format_.decode(format_.start(), contents[path], final=True)
        problems += some
        for one in batch.records():
            assert found.setdefault(one.seq, repr(one)) == repr(one)
    return found, problems


def on_disk(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.iterdir()}


def assert_each_once(found: dict[int, str], records: Sequence[Record], directory: Path) -> None:
    """All ``records`` were found as they were, and the loader gives each of them one row."""
    assert {one.seq: repr(one) for one in records}.items() <= found.items()
    table = load_monitor_logs(directory)
    assert table["seq"].tolist() == sorted(found)
    assert table["seq"].is_unique


def calls_without_a_fault(directory: Path, format_: Format, *, durable: bool = False) -> int:
    system = FaultySystem(-1, FaultySystem.plain)
    trainer = Trainer(directory, format_, system, durable=durable)
    trainer.run()
    trainer.writer.close()
    assert trainer.errors == []
    assert len(trainer.writer.files) > 1, "rotation must be among the calls"
    return len(system.calls)


@all_formats
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_at_each_call_loses_nothing_that_was_acknowledged(
    tmp_path: Path, format_: Format, fault: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    count = calls_without_a_fault(tmp_path / "sound", format_)
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        trainer = Trainer(directory, format_, FaultySystem(number, fault))
        trainer.run()
        assert len(trainer.acknowledged) == BATCH * BATCHES
        found, _ = read_all(on_disk(directory))
        assert_each_once(found, trainer.acknowledged, directory)
        assert len(trainer.errors) <= 2
        assert all(parse_file_name(path.name) for path in directory.iterdir())


@all_formats
def test_while_the_disk_stays_full_no_files_pile_up_and_writing_goes_on_afterwards(
    tmp_path: Path, format_: Format
) -> None:
    class Full(FileSystem):
        full = False

        def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write_at(descriptor, data, offset)

    system = Full()
    writer = FileWriter(tmp_path, format_, HEADER, FILE_BYTES[format_.name], file_system=system)
    writer.write([record(0)])
    system.full = True
    for _ in range(50):
        with pytest.raises(WriteError, match="No space left on device; 0 records of this batch are written") as caught:
            writer.write([record(1)])
        assert caught.value.errno == errno.ENOSPC
    assert len(list(tmp_path.iterdir())) == 1
    system.full = False
    writer.write([record(1)])
    assert sorted(read_all(on_disk(tmp_path))[0]) == [0, 1]


@all_formats
def test_a_batch_that_fails_in_its_second_file_says_how_much_of_it_is_written(tmp_path: Path, format_: Format) -> None:
    class SecondFileFails(FileSystem):
        """Room for one file."""

        def create(self, path: Path) -> int:
            if path.stem == "monitor_00002":
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            return super().create(path)

    records = list(map(record, range(200)))
    writer = FileWriter(tmp_path, format_, HEADER, 2500, file_system=SecondFileFails())
    with pytest.raises(WriteError, match="Disk quota exceeded") as caught:
        writer.write(records)
    done = caught.value.acknowledged
    assert 0 < done < 200
    assert f"{done} records of this batch are written" in str(caught.value)
    assert sorted(read_all(on_disk(tmp_path))[0]) == list(range(done)), "neither more nor less than was said"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_json_load_works_on_every_file_whatever_the_disk_did(tmp_path: Path, fault: Callable[..., Any]) -> None:
    count = calls_without_a_fault(tmp_path / "sound", FORMATS["json"])
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        trainer = Trainer(directory, FORMATS["json"], FaultySystem(number, fault))
        trainer.run()
        rows = [row for path in directory.iterdir() for row in json.loads(path.read_bytes())]
        assert sorted({row["seq"] for row in rows}) == list(range(BATCH * BATCHES))
        assert read_all(on_disk(directory))[1] == [], "what a failed append left is blanked"


@all_formats
@pytest.mark.parametrize("fault", [FAULTS[name] for name in DURABILITY_FAULTS], ids=DURABILITY_FAULTS)
@pytest.mark.parametrize("every_batch", [True, False], ids=["often synced", "once synced"])
def test_what_a_durable_receipt_promised_survives_a_power_failure(
    tmp_path: Path, format_: Format, fault: Callable[..., Any], every_batch: bool
) -> None:
    count = calls_without_a_fault(tmp_path / "sound", format_, durable=every_batch)
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        system = FaultySystem(number, fault)
        trainer = Trainer(directory, format_, system, durable=every_batch)
        trainer.run()
        trainer.sync()
        survivors = {path: system.durable.get(path, b"") for path in system.durable_names}
        found, _ = read_all(survivors)
        promised = {one.seq: repr(one) for one in trainer.durable}
        assert promised.items() <= found.items(), f"call {number}: {system.calls[number]}"
        if not any("sync" in name for name in system.calls[number : number + 1]):
            assert len(promised) == BATCH * BATCHES, "only a failed fsync may spoil the promise"


@all_formats
def test_a_failed_fsync_is_never_followed_by_a_durable_receipt(tmp_path: Path, format_: Format) -> None:
    """After a failed fsync the kernel forgets which bytes were not written: a second one proves nothing."""

    class BadSync(FileSystem):
        bad = False

        def sync(self, descriptor: int) -> None:
            if self.bad:
                raise OSError(errno.EIO, "Input/output error")

    system = BadSync()
    writer = FileWriter(tmp_path, format_, HEADER, FILE_BYTES[format_.name], file_system=system)
    writer.write([record(0)])
    system.bad = True
    with pytest.raises(WriteError, match="Input/output error"):
        writer.sync()
    system.bad = False
    writer.write([record(1)])
    with pytest.raises(WriteError, match="may be lost with a power failure: check the disk"):
        writer.sync()
    assert len(list(tmp_path.iterdir())) == 2, "the file whose fsync failed is not written to again"
    assert sorted(read_all(on_disk(tmp_path))[0]) == [0, 1]


def crash_before(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    raise Crash


def crash_after(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
    system.plain(name, arguments)
    raise Crash


def crash_in_mid_write(part: float) -> Callable[[FaultySystem, str, tuple[Any, ...]], Any]:
    def fault(system: FaultySystem, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "write_at":
            descriptor, data, offset = arguments
            FileSystem.write_at(system, descriptor, data[: int(len(data) * part)], offset)
        raise Crash

    return fault


CRASHES = {
    "before the call": crash_before,
    "after the call": crash_after,
    "in mid-write, 1/3": crash_in_mid_write(1 / 3),
    "in mid-write, 9/10": crash_in_mid_write(0.9),
}


@all_formats
@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
def test_a_crash_at_each_call_costs_nothing_acknowledged_and_a_restart_goes_on(
    tmp_path: Path, format_: Format, crash: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    count = calls_without_a_fault(tmp_path / "sound", format_)
    for number in range(count):
        directory = tmp_path / str(number)
        directory.mkdir()
        trainer = Trainer(directory, format_, FaultySystem(number, crash))
        with pytest.raises(Crash):
            trainer.run()
            trainer.writer.close()
        found, problems = read_all(on_disk(directory))
        assert_each_once(found, trainer.acknowledged, directory)
        assert {problem.kind for problem in problems} <= {"truncated"}
        restarted = FileWriter(directory, format_, HEADER._replace(attempt=2), FILE_BYTES[format_.name])
        restarted.write([record(0)._replace(attempt=2)])
        table = load_monitor_logs(directory)
        assert table["attempt"].tolist() == [1] * len(found) + [2]
        restarted.close()
