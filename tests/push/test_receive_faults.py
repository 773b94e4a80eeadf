"""The receiver with a disk that fails, dies or lies at every system call in turn: what was answered with 200 is there, once."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboard import receive
from dashboard.ingest.discover import discover
from dashboard.receive import Receiver, Taken
from dashboard.receive_names import safe_name
from monitor_core.config import from_mapping
from monitor_core.errors import FormatError
from monitor_core.formats import FORMATS
from monitor_core.formats.payload import Payload, decode_payload, encode_payload
from monitor_core.logs import load_monitor_logs, read_file
from monitor_core.monitor import Recorder
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileSystem, FileWriter

HEADER = FileHeader("run", 0, 1, 1, 1.7e9, "host", 7)
BATCHES = [range(start, start + 5) for start in range(0, 40, 5)]


def records(numbers: range, attempt: int = 1) -> list[Record]:
    values = (math.nan, math.inf, -math.inf, -0.0, 1e308)
    return [Record(seq, attempt, seq, 1, 1.7e9 + seq, {"loss": values[seq % 5]}) for seq in numbers]


def payload(numbers: range, header: FileHeader = HEADER, manifest: dict[str, Any] | None = None) -> Payload:
    return decode_payload(encode_payload(header, records(numbers, header.attempt), manifest))


def on_disk(directory: Path) -> Counter[int]:
    """How often each record stands in the files, without a reader's dropping of repeats."""
    found: Counter[int] = Counter()
    for path in sorted(directory.glob("monitor_*.pb")):
        found.update(read_file(path, FORMATS["protobuf"], directory, []).seq.tolist())
    return found


class Crash(BaseException):
    """The process is gone; nothing of it runs any more."""


class Disk(FileSystem):
    """Fails at the ``at``-th call that changes something, once or for good, and can lose what no fsync covered.

    As Linux does, it reports success for an fsync after one that failed, although the bytes are lost.
    """

    def __init__(self, at: int = -1, fault: BaseException | None = None) -> None:
        self.calls, self.at, self.fault = 0, at, fault
        self.dead = False
        self.synced: dict[int, int] = {}
        """Inode to how many of its bytes would survive."""
        self.poisoned: set[int] = set()
        self.failed = ""

    def _step(self, what: str) -> None:
        if self.dead:
            raise Crash
        self.calls += 1
        if self.calls - 1 == self.at and self.fault is not None:
            self.failed = what
            self.dead = isinstance(self.fault, Crash)
            raise self.fault

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        try:
            self._step("write")
        except BaseException:
            super().write_at(descriptor, data[: len(data) // 2], offset)  # the worst: half of it is there
            raise
        return super().write_at(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        try:
            self._step("sync")
        except OSError:
            self.poisoned.add(status.st_ino)
            raise
        if status.st_ino not in self.poisoned:
            self.synced[status.st_ino] = status.st_size
        super().sync(descriptor)

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory")

    def close(self, descriptor: int) -> None:
        if not self.dead:
            self._step("close")
        super().close(descriptor)

    def remove(self, path: Path) -> None:
        self._step("remove")
        super().remove(path)

    def lose_power(self, directory: Path) -> None:
        for path in directory.glob("monitor_*"):
            os.truncate(path, self.synced.get(path.stat().st_ino, 0))


def deliver(root: Path, disk: Disk) -> tuple[Receiver, list[range], int]:
    """A sender that tries each batch until it is acknowledged, with a new receiver whenever the old one has died."""
    receiver, acknowledged, restarts = Receiver(root, file_system=disk), [], 0
    for numbers in BATCHES:
        for _ in range(5):
            try:
                receiver.take(payload(numbers))
            except Crash:
                disk.dead, restarts = False, restarts + 1
                receiver = Receiver(root, file_system=disk)
            except OSError:
                pass
            else:
                acknowledged.append(numbers)
                break
    return receiver, acknowledged, restarts


def changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many calls a delivery without faults makes; several files, so that rotation is among them."""
    monkeypatch.setattr(receive, "DEFAULT_MAX_FILE_SIZE_BYTES", 800)
    disk = Disk()
    receiver, acknowledged, _ = deliver(tmp_path / "right", disk)
    assert acknowledged == BATCHES
    assert len(list((tmp_path / "right" / "run").glob("monitor_*"))) > 2
    calls = disk.calls
    receiver.close()
    return calls


def test_a_receiver_that_dies_at_any_call_forgets_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(changes(tmp_path, monkeypatch)):
        root = tmp_path / str(at)
        disk = Disk(at, Crash())
        receiver, acknowledged, restarts = deliver(root, disk)
        assert (acknowledged, restarts) == (BATCHES, 1), disk.failed
        disk.lose_power(root / "run")
        assert on_disk(root / "run") == Counter(range(40)), (at, disk.failed)
        receiver.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_any_call_costs_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """After an fsync that failed the bytes are lost, though the next one reports success: the records are written anew."""
    for at in range(changes(tmp_path, monkeypatch)):
        root = tmp_path / str(at)
        disk = Disk(at, OSError(code, os.strerror(code)))
        receiver, acknowledged, _ = deliver(root, disk)
        assert acknowledged == BATCHES, (at, disk.failed)
        before = on_disk(root / "run")
        assert set(before) == set(range(40))
        if disk.failed not in ("sync", "sync_directory"):
            assert before == Counter(range(40)), (at, disk.failed)
        disk.lose_power(root / "run")
        assert set(on_disk(root / "run")) == set(range(40)), (at, disk.failed)
        assert sorted(load_monitor_logs(root / "run")["seq"]) == list(range(40)), "a reader shows each once"
        with contextlib.suppress(OSError):
            receiver.close()


def test_what_a_killed_receiver_left_unsynced_is_durable_before_it_counts_as_there(tmp_path: Path) -> None:
    disk = Disk()
    writer = FileWriter(tmp_path / "run", FORMATS["protobuf"], HEADER, 10**6, file_system=disk)
    Receiver(tmp_path).take(payload(range(0)))
    writer.write(records(range(10)))
    assert disk.synced == {}
    receiver = Receiver(tmp_path, file_system=disk)
    assert receiver.take(payload(range(10))) == (0, 10)
    disk.lose_power(tmp_path / "run")
    assert on_disk(tmp_path / "run") == Counter(range(10))
    receiver.close()
    writer.close()


def test_a_local_training_of_the_same_name_keeps_its_folder(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    """msmon-dash --logdir logs --receive, and a training that writes to logs/run and pushes as well."""
    server = receiving(tmp_path)
    recorder = Recorder(from_mapping({"log_dir": tmp_path / "run", "name": "run", "http_endpoint": server.url}))
    recorder.open()
    for seq in range(100):
        recorder.record(seq, 1, {"loss": math.inf})
    recorder.close()
    assert [path.name for path in (tmp_path / "run").glob("monitor_*")] == ["monitor_00001.json"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["notes"] == []
    assert len(load_monitor_logs(tmp_path / "run-2")) == len(load_monitor_logs(tmp_path / "run")) == 100


@pytest.mark.parametrize("what", ["link", "rank link", "damaged run.json", "files", "base files", "file"])
def test_a_folder_that_is_not_the_receiver_s_is_left_alone(tmp_path: Path, what: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "run").mkdir(parents=True)
    elsewhere.mkdir()
    header = HEADER._replace(rank=1, world_size=2) if "rank" in what or "base" in what else HEADER
    if what == "link":
        (root / "run").rmdir()
        (root / "run").symlink_to(elsewhere)
    elif what == "rank link":
        (root / "run" / "rank_1").symlink_to(elsewhere)
    elif what == "damaged run.json":
        (root / "run" / "run.json").write_text("{")
    elif what == "file":
        (root / "run").rmdir()
        (root / "run").write_text("a file")
    else:
        (root / "run" / "monitor_00001.json").write_text("[\n]")
    before = sorted((path, path.is_symlink()) for path in root.rglob("*"))
    receiver = Receiver(root)
    assert receiver.take(payload(range(5), header)) == (5, 0)
    receiver.close()
    again = Receiver(root)
    assert again.take(payload(range(6), header)) == (1, 5)
    again.close()
    assert list(elsewhere.iterdir()) == []
    made = {path for path in root.rglob("*") if "run-2" in path.parts}
    assert sorted((path, path.is_symlink()) for path in root.rglob("*") if path not in made) == before
    assert len(load_monitor_logs(root / "run-2")) == 6


@pytest.mark.parametrize(
    "name", ["rank_3", "RANK_0", "node_modules", "kernel_meta", "__pycache__", "\U00020000" * 80, "名" * 200]
)
def test_a_received_run_is_one_that_readers_see(tmp_path: Path, name: str) -> None:
    receiver = Receiver(tmp_path)
    receiver.take(payload(range(5), HEADER._replace(run=name)))
    receiver.close()
    (found,) = discover(tmp_path).runs
    assert (found.directory.parent, [file.rank for file in found.files]) == (tmp_path, [0])
    assert safe_name(name) == found.name != name


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"created": math.nan}, "created"), ({"created": math.inf}, "created"), ({"rank": 1_000_000, "world_size": 1_000_001}, "at most"),
        ({"attempt": 0}, "attempt"), ({"world_size": 0}, "size"), ({"rank": 1}, "rank"),
    ],
)  # fmt: skip
def test_a_header_that_no_folder_fits_is_refused(header: dict[str, Any], said: str) -> None:
    with pytest.raises(FormatError, match=said):
        decode_payload(encode_payload(HEADER._replace(**header), [], None))


def test_records_that_cannot_be_written_are_refused_before_anything_is(tmp_path: Path) -> None:
    from monitor_core.batch import from_records

    negative = from_records(records(range(5)))
    negative.seq[2] = -1
    receiver = Receiver(tmp_path)
    with pytest.raises(FormatError, match="out of range"):
        receiver.take(payload(range(5))._replace(batch=negative))
    assert list(tmp_path.iterdir()) == []


def test_a_small_body_cannot_ask_for_a_lot_of_work() -> None:
    """Batches of one row with a metric of their own each: joined they would be a table of millions, mostly empty."""
    encoder = FORMATS["protobuf"].encoder(HEADER, records(range(1)))
    rows = [records(range(row, row + 1))[0]._replace(scalars={f"metric{row}": 1.0}) for row in range(2500)]
    body = b"".join([encoder.begin(), *(encoder.encode([row], first=True) for row in rows)])
    assert len(body) < 400_000
    begun = time.process_time()
    with pytest.raises(FormatError, match="send fewer records"):
        decode_payload(body)
    assert time.process_time() - begun < 2


@pytest.mark.parametrize(
    "manifest",
    [
        {"name": "x" * (600 << 10)},
        {"name": "x", "attempts": [{"status": "paused"}]},
        {"name": 7},
        {"name": "x", "notes": 7},
    ],
)
def test_a_run_json_that_could_not_be_read_back_is_refused(tmp_path: Path, manifest: dict[str, Any]) -> None:
    receiver = Receiver(tmp_path)
    with pytest.raises(FormatError, match="manifest"):
        receiver.take(payload(range(5), manifest=manifest))
    assert list(tmp_path.iterdir()) == []


def test_a_run_json_with_lone_surrogates_is_stored_readably(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    manifest = {"name": "a\ud800", "notes": ["b\udcff"], "config": {"log_dir": "/c\udcfe"}}
    assert receiver.take(payload(range(5), manifest=manifest)) == (5, 0)
    told = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert (told["name"], told["notes"][0], told["config"]["log_dir"]) == ("a\\ud800", "b\\udcff", "/c\\udcfe")
    receiver.close()


def test_ranks_by_the_hundred_keep_their_files(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    ranks = [HEADER._replace(rank=rank, world_size=100) for rank in range(100)]
    for start in range(0, 15, 5):
        for header in ranks:
            assert receiver.take(payload(range(start, start + 5), header)) == (5, 0)
    receiver.close()
    assert len(list(tmp_path.rglob("monitor_*"))) == 100


def test_attempts_that_memory_forgets_are_read_from_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "_MAX_HOMES", 3)
    receiver = Receiver(tmp_path)
    for again in range(2):
        for number in range(10):
            header = HEADER._replace(run=f"run{number}")
            assert receiver.take(payload(range(again * 3, again * 3 + 5), header)) == ((5, 0) if not again else (3, 2))
    assert len(receiver._homes) <= 4
    receiver.close()
    assert all(on_disk(tmp_path / f"run{number}") == Counter(range(8)) for number in range(10))


class Slow(FileSystem):
    """Fsync waits until the test lets it, in one run's folder."""

    def __init__(self) -> None:
        self.waiting, self.go = threading.Event(), threading.Event()

    def sync(self, descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().parent.name == "slow":
            self.waiting.set()
            assert self.go.wait(30)
        super().sync(descriptor)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Receiver, Slow, threading.Thread]]:
    """A receiver in which one request of the run ``slow`` hangs."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    disk = Slow()
    receiver = Receiver(tmp_path, file_system=disk)
    stuck = threading.Thread(target=receiver.take, args=(payload(range(5), HEADER._replace(run="slow")),))
    stuck.start()
    assert disk.waiting.wait(10)
    yield receiver, disk, stuck
    disk.go.set()
    stuck.join(10)
    receiver.close()


def test_one_run_s_slow_disk_holds_no_other_run_up(slow: tuple[Receiver, Slow, threading.Thread]) -> None:
    receiver, _, stuck = slow
    begun = time.monotonic()
    assert receiver.take(payload(range(5), HEADER._replace(run="quick"))) == (5, 0)
    assert time.monotonic() - begun < 2
    assert stuck.is_alive()


def test_a_second_request_of_a_slow_attempt_is_told_to_come_again(
    slow: tuple[Receiver, Slow, threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, disk, stuck = slow
    monkeypatch.setattr(receive, "_BUSY_S", 0.1)
    again = payload(range(5), HEADER._replace(run="slow"))
    with pytest.raises(OSError, match="another request"):
        receiver.take(again)
    disk.go.set()
    stuck.join(10)
    assert receiver.take(again) == (0, 5)


def test_the_same_batch_from_many_threads_is_written_once(tmp_path: Path) -> None:
    """A sender whose timeout passed sends again while the first request is still being written."""
    receiver, taken = Receiver(tmp_path), []
    threads = [threading.Thread(target=lambda: taken.append(receiver.take(payload(range(50))))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [Taken(0, 50)] * 11 + [Taken(50, 0)]
    assert on_disk(tmp_path / "run") == Counter(range(50))
    receiver.close()


def test_more_requests_than_places_are_told_to_come_again(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    import http.client

    server = receiving(tmp_path)
    places = server.service._receiver._places
    taken = 0
    while places.acquire(blocking=False):
        taken += 1
    answers = []
    for _ in range(2):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            body = encode_payload(HEADER, records(range(5)), None)
            connection.request("POST", "/api/records", body, {"Content-Type": "application/x-protobuf"})
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("Retry-After"), json.loads(answer.read())))
        for _ in range(taken):
            places.release()
        taken = 0
    assert answers[0][:2] == (503, "5")
    assert answers[1] == (200, None, {"accepted": 5, "duplicate": 0})


def test_a_compressed_body_is_refused(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    import gzip
    import http.client

    server = receiving(tmp_path)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        body = gzip.compress(encode_payload(HEADER, records(range(5)), None))
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
        connection.request("POST", "/api/records", body, headers)
        assert connection.getresponse().status == 415
    assert list(tmp_path.iterdir()) == []


def test_one_bad_run_json_does_not_break_the_page(tmp_path: Path) -> None:
    from dashboard.app import make_server
    from dashboard.ingest.ingester import Ingester
    from dashboard.overlays import Overlays
    from dashboard.settings import Settings
    from dashboard.store.table import TableStore
    from dashboard.stream import Api

    (tmp_path / "bad").mkdir()
    text = r'{"name": "\ud800", "notes": ["\udfff"], "attempts": [{"status": "failed", "reason": "\ud801", "host": "\ud802"}]}'
    (tmp_path / "bad" / "run.json").write_text(text)
    store, overlays = TableStore(), Overlays()
    ingester = Ingester([tmp_path], store, overlays)
    ingester.scan_once()
    client = make_server(Settings((tmp_path,)), Api(store, ingester, overlays)).test_client()
    answer = client.get("/api/runs", headers={"Host": "127.0.0.1:8600"})
    assert answer.status_code == 200
    assert (answer.json["runs"][0]["title"], answer.json["runs"][0]["reason"]) == ("\\ud800", "\\ud801")
    refused = client.post("/api/records", data=b"x", headers={"Host": "127.0.0.1:8600"})
    assert (refused.status_code, "--receive" in refused.get_data(as_text=True)) == (404, True)
