"""The receiver: ordinary run directories, each record once, whatever is sent twice, killed or wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dashboard.receive import Receiver
from dashboard.receive_names import safe_name
from monitor_core.config import from_mapping
from monitor_core.errors import FormatError
from monitor_core.formats.payload import Payload, decode_payload, encode_payload
from monitor_core.limits import MAX_PUSH_BYTES
from monitor_core.logs import load_monitor_logs
from monitor_core.monitor import Recorder
from monitor_core.record import FileHeader, Record
from monitor_core.writers.push import Push

ROOT = Path(__file__).parents[2]


def header(run: str = "run", *, rank: int = 0, size: int = 1, attempt: int = 1, created: float = 1.7e9) -> FileHeader:
    return FileHeader(run, rank, size, attempt, created, "host", 7)


def records(start: int, stop: int, attempt: int = 1) -> list[Record]:
    return [Record(seq, attempt, seq, 1, 1.7e9 + seq, {"loss": float(seq)}) for seq in range(start, stop)]


def payload(head: FileHeader, start: int, stop: int, manifest: dict[str, Any] | None = None) -> Payload:
    return decode_payload(encode_payload(head, records(start, stop, head.attempt), manifest))


def seqs(folder: Path) -> list[int]:
    table = load_monitor_logs(folder)
    assert table.attrs["problems"] == []
    found: list[int] = table["seq"].to_list()
    return found


class Answer(NamedTuple):
    status: int
    retry_after: str | None
    body: bytes


def send(receiving: Any, body: bytes, **headers: str) -> Answer:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", receiving.port, timeout=20)) as connection:
        connection.request("POST", "/api/records", body, {"Content-Type": "application/x-protobuf"} | headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("Retry-After"), answer.read())


def test_a_training_pushed_is_what_the_training_wrote(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    server = receiving(tmp_path / "received")
    config = from_mapping(
        {"log_dir": tmp_path / "local", "name": "my run", "http_endpoint": server.url, "collect_freq": 7}
    )
    recorder = Recorder(config)
    for status, reason in (("finished", None), ("failed", "ValueError")):
        recorder.open(facts={"optimizer": {"class": "Adam"}})
        recorder.explain({"memory_peak": "no device"})
        for step in range(500):
            values = {"loss": [math.nan, math.inf, -math.inf, -0.0, 0.5][step % 5], "grad_norm": 1.0 / (step + 1)}
            recorder.record(step, 1, values | ({"rare": 1.0} if step % 50 == 0 else {}), {"input_shapes": [[step, 2]]})
        recorder.close(status, reason)
    local, received = load_monitor_logs(tmp_path / "local"), load_monitor_logs(tmp_path / "received" / "my run")
    assert len(local) == 1000
    columns = ["seq", "attempt", "step", "epoch", "timestamp", "loss", "grad_norm", "rare"]
    assert received[columns].equals(local[columns])
    assert received["input_shapes"].to_list() == local["input_shapes"].to_list()
    ours, theirs = (
        json.loads((path / "run.json").read_text()) for path in (tmp_path / "local", tmp_path / "received" / "my run")
    )
    assert theirs["notes"] == [*ours["notes"], f"received over HTTP from {ours['attempts'][0]['host']}"]
    assert theirs | {"notes": 0} == ours | {"notes": 0}
    assert [attempt["status"] for attempt in theirs["attempts"]] == ["finished", "failed"]


def test_what_is_sent_again_is_written_once(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    assert receiver.take(payload(header(), 0, 10)) == (10, 0)
    assert receiver.take(payload(header(), 0, 10)) == (0, 10)
    assert receiver.take(payload(header(), 5, 15)) == (5, 5)
    assert receiver.take(payload(header(), 20, 25)) == (5, 0), "a gap is the sender's, and shows"
    assert receiver.take(payload(header(), 0, 30)) == (10, 20)
    receiver.close()
    again = Receiver(tmp_path)
    assert again.take(payload(header(), 0, 31)) == (1, 30), "a restart forgets nothing"
    again.close()
    assert sorted(seqs(tmp_path / "run")) == list(range(31))


def test_ranks_attempts_and_runs_stay_apart(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    for rank in (0, 1):
        receiver.take(payload(header(rank=rank, size=2, created=1.7e9 + rank), 0, 10))
    receiver.take(payload(header(attempt=2, rank=0, size=2, created=1.8e9), 0, 5))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["rank_0", "rank_1", "run.json"]
    table = load_monitor_logs(tmp_path / "run")
    assert table.groupby(["rank", "attempt"]).size().to_dict() == {(0, 1): 10, (0, 2): 5, (1, 1): 10}
    receiver.close()


def test_another_training_of_the_same_name_is_no_repeat(tmp_path: Path) -> None:
    """In a container with fresh disks every start is attempt 1 with seq from 0."""
    receiver = Receiver(tmp_path)
    receiver.take(payload(header(created=1.7e9), 0, 10))
    assert receiver.take(payload(header(created=1.8e9), 0, 7)) == (7, 0)
    receiver.close()
    again = Receiver(tmp_path)
    assert again.take(payload(header(created=1.8e9), 0, 8)) == (1, 7)
    assert again.take(payload(header(created=1.7e9), 0, 11)) == (1, 10)
    again.close()
    assert (len(seqs(tmp_path / "run")), len(seqs(tmp_path / "run-2"))) == (11, 8)


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/abs",
        "..",
        ".",
        "",
        ".hidden",
        "a/b",
        "a\\b",
        "a\nb",
        "x" * 500,
        "名字 🙂",
        "\udcff",
        "a\0b",
        "con:",
        "<script>",
    ],
)
def test_any_name_stays_inside_the_log_directory(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    receiver = Receiver(root)
    receiver.take(payload(header(name), 0, 3))
    receiver.close()
    (run,) = root.iterdir()
    assert run.resolve().parent == root.resolve()
    assert not run.name.startswith(".")
    assert len(run.name.encode()) < 255
    assert seqs(run) == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [root]


def test_different_names_have_different_folders() -> None:
    names = ["a/b", "a_b", "a:b", "a b", "a.b", "A/B", "..", "."]
    assert len({safe_name(name) for name in names}) == len(names)


def test_what_is_no_payload_is_refused_and_nothing_is_written(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    server = receiving(tmp_path)
    whole = encode_payload(header(), records(0, 10), {"name": "x"})
    bad = {
        b"": 400, b"hello": 400, whole[:-1]: 400, whole[:40]: 400, whole + b"x": 400, whole[:60] + b"\xff" + whole[61:]: 400,
        encode_payload(header(attempt=2), records(0, 3, 1), None): 400,
        encode_payload(header(), records(0, 3), {"attempts": 7}): 400,
        encode_payload(header(), [], {"name": "y" * (1 << 20)}): 400,
        encode_payload(header(rank=5, size=2), records(0, 3), None): 400,
    }  # fmt: skip
    for body, status in bad.items():
        answer = send(server, body)
        assert (answer.status, len(body)) == (status, len(body))
        assert 10 < len(answer.body) < 300
    assert send(server, whole, **{"Content-Type": "text/plain"}).status == 415
    with contextlib.suppress(ConnectionError):  # the server may hang up before it has all of it
        assert send(server, b"x" * (MAX_PUSH_BYTES + 1)).status == 413
    assert list(tmp_path.iterdir()) == []


def test_foreign_pages_hosts_and_strangers_are_kept_out(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    server = receiving(tmp_path, token="right")
    body = encode_payload(header(), records(0, 3), None)
    assert send(server, body).status == 401
    assert send(server, body, Authorization="Bearer wrong").status == 401
    assert send(server, body, Authorization="Bearer right", **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert send(server, body, Authorization="Bearer right", Origin="http://evil.example").status == 403
    assert send(server, body, Authorization="Bearer right", Host="evil.example").status == 400
    assert list(tmp_path.iterdir()) == []
    assert send(server, body, Authorization="Bearer right").status == 200
    assert seqs(tmp_path / "run") == [0, 1, 2]


def test_without_receive_there_is_no_such_route(tmp_path: Path) -> None:
    from dashboard.app import make_server
    from dashboard.ingest.ingester import Ingester
    from dashboard.overlays import Overlays
    from dashboard.settings import Settings
    from dashboard.store.table import TableStore
    from dashboard.stream import Api

    store, overlays = TableStore(), Overlays()
    server = make_server(Settings((tmp_path,)), Api(store, Ingester([tmp_path], store, overlays), overlays))
    answer = server.test_client().post(
        "/api/records",
        data=encode_payload(header(), records(0, 3), None),
        headers={"Host": "127.0.0.1:8600"},
        content_type="application/x-protobuf",
    )
    assert answer.status_code in (404, 405)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_said_and_nothing_is_promised(
    tmp_path: Path, receiving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = receiving(tmp_path)
    body = encode_payload(header(), records(0, 10), None)
    from monitor_core.writers.file_system import FileSystem

    right = FileSystem.write_at

    def full(self: FileSystem, descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSystem, "write_at", full)
    answer = send(server, body)
    assert (answer.status, answer.retry_after) == (503, "5")
    assert b"No space left" in answer.body
    monkeypatch.setattr(FileSystem, "write_at", right)
    assert json.loads(send(server, body).body) == {"accepted": 10, "duplicate": 0}
    assert seqs(tmp_path / "run") == list(range(10))


def test_many_senders_at_once(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    server = receiving(tmp_path)

    def training(number: int) -> None:
        push = Push(server.url, header(f"run {number % 3}", rank=number // 3, size=4))
        for start in range(0, 600, 50):
            push.offer(records(start, start + 50))
            time.sleep(0.001)
        assert push.close() == (600, 0, None)

    threads = [threading.Thread(target=training, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        table = load_monitor_logs(tmp_path / f"run {number}")
        assert table.groupby("rank")["seq"].apply(
            lambda seq: sorted(seq) == list(range(600))
        ).to_dict() == dict.fromkeys(range(4), True)


def test_more_runs_than_files_may_be_open(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, max_open=16)
    for again in range(2):
        for number in range(100):
            receiver.take(payload(header(f"run{number}"), again * 5, again * 5 + 5))
    assert sum(home.writer._open is not None for home in receiver._homes.values()) == 16
    receiver.close()
    assert all(seqs(tmp_path / f"run{number}") == list(range(10)) for number in range(100))


@pytest.mark.usefixtures("quick")
def test_replies_that_are_lost_cost_no_repeat(tmp_path: Path, endpoint: Any) -> None:
    receiver, source = Receiver(tmp_path), random.Random(4)

    def behave(handler: Any, body: bytes) -> int | None:
        receiver.take(decode_payload(body))
        if source.random() < 0.5:  # it is written, and the answer gets lost
            handler.connection.shutdown(2)
            return -1
        return None

    endpoint.behave = behave
    push = Push(endpoint.url, header())
    for start in range(0, 1000, 20):
        push.offer(records(start, start + 20))
        time.sleep(0.002)
    assert push.close() == (1000, 0, None)
    receiver.close()
    assert seqs(tmp_path / "run") == list(range(1000))


@pytest.mark.usefixtures("quick")
def test_a_receiver_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """SIGKILL at random moments while a training pushes: every record is there once in the end."""
    source = random.Random(9)
    server, port = start_dash(tmp_path / "received", 0)
    push = Push(f"http://127.0.0.1:{port}", header())
    seq = 0
    for _ in range(6):
        end = time.monotonic() + source.uniform(0.1, 0.5)
        while time.monotonic() < end:
            push.offer(records(seq, seq + 20))
            seq += 20
            time.sleep(0.005)
        os.kill(server.pid, signal.SIGKILL)
        server.communicate()
        server, _ = start_dash(tmp_path / "received", port)
    delivery = push.close(30)
    server.terminate()
    server.communicate()
    assert delivery == (delivery.sent, 0, None)
    assert seqs(tmp_path / "received" / "run") == list(range(seq))


def start_dash(root: Path, port: int) -> tuple[subprocess.Popen[str], int]:
    command = [
        sys.executable,
        "-m",
        "dashboard.cli",
        "--receive",
        "--no-browser",
        "--port",
        str(port),
        "--logdir",
        str(root),
    ]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert "http://" in line, line
    return server, int(line.split("127.0.0.1:")[1].split("/")[0])


def test_receive_and_read_only_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dashboard.cli import main

    assert main(["--receive", "--read-only", "--logdir", str(tmp_path)]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_payload_of_several_attempts_is_refused(tmp_path: Path) -> None:
    mixed = decode_payload(encode_payload(header(), [*records(0, 3, 1), *records(3, 5, 2)], None))
    with pytest.raises(FormatError, match="another attempt"):
        Receiver(tmp_path).take(mixed)
    assert list(tmp_path.iterdir()) == []


def test_a_server_with_more_than_1024_descriptors_goes_on(tmp_path: Path, receiving: Callable[..., Any]) -> None:
    """A receiver of many runs keeps many files open, and select() takes no descriptor from 1,024 on."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        server = receiving(tmp_path / "received")
        assert send(server, encode_payload(header(), records(0, 3), None)).status == 200
        server.stop()
    assert seqs(tmp_path / "received" / "run") == [0, 1, 2]
