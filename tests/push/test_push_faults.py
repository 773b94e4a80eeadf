"""Endpoints that do the worst at the worst moment: training goes on, memory is bounded, and every record is sent or counted."""

from __future__ import annotations

import contextlib
import email.utils
import json
import logging
import math
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monitor_core import limits, monitor, signals
from monitor_core.config import from_mapping
from monitor_core.errors import ConfigError
from monitor_core.formats.payload import decode_payload
from monitor_core.logs import load_monitor_logs
from monitor_core.monitor import Recorder
from monitor_core.record import FileHeader, Record
from monitor_core.writers.post import Answer, seconds_to_wait
from monitor_core.writers.push import Push
from monitor_core.writers.spool import Spool, memory_bytes

TOKEN = "s3cret-token"
HEADER = FileHeader("run", 0, 1, 1, 1.7e9, "host", 7)


def records(start: int, stop: int, **more: float) -> list[Record]:
    return [Record(seq, 1, seq, 1, 1.7e9 + seq, {"loss": float(seq)} | more) for seq in range(start, stop)]


_LISTENING: list[socket.socket] = []
_THREADS: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def end_servers() -> Iterator[None]:
    """No thread of a test lives on in the next one, which may count them."""
    yield
    while _LISTENING:
        listening = _LISTENING.pop()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
    while _THREADS:
        _THREADS.pop(0).join(10)


def start(work: Callable[..., None], *arguments: Any) -> None:
    def run() -> None:
        with contextlib.suppress(OSError):  # the other side hung up
            work(*arguments)

    _THREADS.append(threading.Thread(target=run, daemon=True))
    _THREADS[-1].start()


def silent_address() -> str:
    """Connections wait in the backlog; nobody ever answers."""
    _LISTENING.append(socket.create_server(("127.0.0.1", 0)))
    return f"http://127.0.0.1:{_LISTENING[-1].getsockname()[1]}"


def dead_address() -> str:
    """Connections are refused."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def answering(reply: bytes, pause_s: float = 0.0) -> str:
    """A server that reads a request, sends ``reply`` byte by byte with pauses (at once without) and hangs up; its address."""
    address = silent_address()
    listening = _LISTENING[-1]

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(1 << 20)
            for piece in [reply] if not pause_s else [reply[place : place + 1] for place in range(len(reply))]:
                connection.sendall(piece)
                time.sleep(pause_s)

    def serve() -> None:
        while True:
            start(answer, listening.accept()[0])

    start(serve)
    return address


def test_an_endpoint_that_answers_byte_by_byte_holds_nothing_up() -> None:
    """Each byte comes within the timeout, so only a limit on the whole helps; what is under way is counted."""
    push = Push(answering(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000, 0.05), HEADER)
    push.offer(records(0, 100))
    time.sleep(0.2)
    begun = time.monotonic()
    delivery = push.close(0.3)
    assert time.monotonic() - begun < 1.5
    assert (delivery.sent, delivery.lost) == (0, 100)
    assert not push._thread.is_alive()


@pytest.mark.usefixtures("quick")
def test_a_request_that_takes_too_long_is_cut_off_while_training_goes_on(
    endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PUSH_REQUEST_S", 0.3)

    def drip(handler: Any, body: bytes) -> int:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(100):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.1)
        return -1

    endpoint.behave = lambda handler, body: drip(handler, body) if len(endpoint.requests) == 1 else None
    push = Push(endpoint.url, HEADER)
    for start in range(0, 100, 10):
        push.offer(records(start, start + 10))
        time.sleep(0.1)
    assert push.close() == (100, 0, None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "reply",
    [
        b"", b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 2", b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"x" * 70_000 + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off_is_no_answer(reply: bytes) -> None:
    push = Push(answering(reply), HEADER)
    push.offer(records(0, 10))
    sent, lost, _ = push.close(0.5)
    assert (sent, lost) == (0, 10)


def test_a_complete_answer_is_an_answer() -> None:
    for reply in (
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 204 No Content\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
    ):
        push = Push(answering(reply), HEADER)
        push.offer(records(0, 10))
        assert push.close(5) == (10, 0, None), reply


@pytest.mark.usefixtures("quick")
def test_a_defect_does_not_end_the_thread(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from monitor_core.writers import push as module

    right, calls = module.encode_payload, iter(range(100))

    def wrong(*arguments: Any) -> bytes:
        if next(calls) == 0:
            raise ZeroDivisionError
        return right(*arguments)

    monkeypatch.setattr(module, "encode_payload", wrong)
    push = Push(endpoint.url, HEADER)
    push.offer(records(0, 10))
    assert push.close() == (10, 0, None)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [400, 413, 500])
def test_a_run_json_that_is_refused_costs_no_record(endpoint: Any, status: int) -> None:
    """A receiver of another version may not like it; with 500 the endpoint may come to its senses."""

    def behave(handler: Any, body: bytes) -> int | None:
        return status if decode_payload(body).manifest and (status != 500 or len(endpoint.requests) < 4) else None

    endpoint.behave = behave
    push = Push(endpoint.url, HEADER)
    push.tell({"name": "run"})
    for start in range(0, 100, 10):
        push.offer(records(start, start + 10))
    assert push.close() == (100, 0, None)


def test_the_spool_is_bounded_in_memory_too() -> None:
    """A record with the norms of 4,000 layers is as large as 400 ordinary ones."""
    wide = records(0, 100, **{f"layer{number}": 1.0 for number in range(4000)})
    size = memory_bytes(wide[0])
    assert 100_000 < size < 600_000
    spool = Spool(16_384, 10 * size)
    assert spool.add(wide) == 90
    assert [record.seq for record in spool.take(100, 3 * size)] == [90, 91, 92]
    assert [record.seq for record in spool.take(100, 1)] == [93], "one at least, or it would never move"
    assert spool.restore(wide[:94]) == 90, "what was taken goes back as far as there is room, the newest first"
    assert [record.seq for record in spool.take(100, 10**9)] == list(range(90, 100))
    assert (len(spool), spool._bytes) == (0, 0)


def test_the_spool_counts_whatever_it_holds() -> None:
    spool = Spool(5, 10**9)
    assert spool.add(records(0, 12)) == 7
    taken = spool.take(2, 10**9)
    assert [record.seq for record in taken] == [7, 8]
    assert spool.add(records(12, 14)) == 0
    assert spool.restore(taken) == 2
    assert spool.clear() == 5
    nested = Record(0, 1, 0, None, 0.0, {}, {"shapes": [[1, 2], "text" * 1000], "more": {"a": None}})
    assert 4000 < memory_bytes(nested) < 6000


def test_estimated_memory_is_not_below_the_real_one() -> None:
    for count in (0, 1, 10, 1000):
        record = Record(10**6, 1, 10**6, 1, 1.7e9, {f"metric{number}": number / 7 for number in range(count)})
        real = sys.getsizeof(record) + sys.getsizeof(record.scalars) + sum(map(sys.getsizeof, record.scalars.values()))
        assert 0.9 * real < memory_bytes(record) < 5 * real


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0), ("", 0), ("7", 7), (" 7 ", 7), ("-1", 0), ("soon", 0), ("²", 0), ("1e3", 0), ("9" * 400, math.inf),
        (email.utils.formatdate(1_000_030, usegmt=True), 30), (email.utils.formatdate(999_000, usegmt=True), 0),
        ("Fri, 99 Nov 1999 99:99:99 GMT", 0), ("Mon, 01 Jan 99999 00:00:00 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after(header: str | None, seconds: float) -> None:
    assert seconds_to_wait(header, 1_000_000.0) == pytest.approx(seconds)


@pytest.mark.usefixtures("quick")
def test_the_endpoint_may_not_ask_for_more_patience_than_the_cap(endpoint: Any) -> None:
    def behave(handler: Any, body: bytes) -> int | None:
        if len(endpoint.requests) > 1:
            return None
        handler.send_response(503)
        handler.send_header("Retry-After", "9" * 400)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return -1

    endpoint.behave = behave
    push = Push(endpoint.url, HEADER)
    push.offer(records(0, 5))
    deadline = time.monotonic() + 5
    while len(endpoint.requests) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(endpoint.requests) == 2
    push.close()


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "MSMON_HTTP_TOKEN"), (404, "--receive"), (302, "not followed"), (500, "")]
)
def test_an_answer_says_what_to_do(status: int, hint: str) -> None:
    assert hint in str(Answer(status, 0.0))


@pytest.mark.usefixtures("quick")
def test_each_trouble_is_said_once(endpoint: Any, caplog: pytest.LogCaptureFixture) -> None:
    statuses = iter([500] * 3 + [401] * 3)
    endpoint.behave = lambda handler, body: next(statuses, None)
    with caplog.at_level(logging.WARNING, "msmon"):
        push = Push(f"{endpoint.url}/x?code=hush", HEADER, "s3cret-token")
        push.offer(records(0, 5))
        assert push.close() == (5, 0, None)
    assert [("500" in text, "401" in text) for text in caplog.messages] == [(True, False), (False, True)]
    assert "hush" not in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("address", [dead_address, silent_address])
def test_training_never_waits_for_an_endpoint(
    tmp_path: Path, address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "CLOSE_TIMEOUT_S", 2.0)
    recorder = Recorder(from_mapping({"log_dir": tmp_path, "http_endpoint": address(), "buffer_size": 100_000}))
    recorder.open()
    push, times = recorder._push, []
    assert push is not None
    for seq in range(30_000):
        begun = time.perf_counter()
        recorder.record(seq, 1, {"loss": 1.0})
        times.append(time.perf_counter() - begun)
    assert sorted(times)[len(times) * 99 // 100] < 1e-3, "p99 of a step"
    begun = time.perf_counter()
    recorder.flush()
    assert time.perf_counter() - begun < 5, "a flush speaks of files"
    assert len(push._spool) <= limits.PUSH_SPOOL_RECORDS
    begun = time.perf_counter()
    recorder.close()
    assert time.perf_counter() - begun < 4
    assert len(load_monitor_logs(tmp_path)) == 30_000, "the files have all"
    (note,) = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert "http_endpoint: 30000 records were not delivered: attempt 1: " in note


def test_each_attempt_tells_its_own_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "CLOSE_TIMEOUT_S", 0.3)
    recorder = Recorder(from_mapping({"log_dir": tmp_path, "http_endpoint": dead_address()}))
    for _ in range(2):
        recorder.open()
        recorder.record(1, 1, {"loss": 1.0})
        recorder.close()
    notes = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert ["attempt 1:" in notes[0], "attempt 2:" in notes[1]] == [True, True]


def test_after_sigterm_the_endpoint_gets_less_time_than_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_ending", True)
    push = Push(dead_address(), HEADER)
    push.offer(records(0, 5))
    begun = time.monotonic()
    assert push.close().lost == 5
    assert time.monotonic() - begun < limits.PUSH_SIGTERM_S + 1 < limits.SIGTERM_TIMEOUT_S


def test_a_forked_child_sends_nothing(tmp_path: Path, endpoint: Any) -> None:
    recorder = Recorder(from_mapping({"log_dir": tmp_path, "http_endpoint": endpoint.url, "collect_freq": 1}))
    recorder.open()
    recorder.record(0, 1, {"loss": 1.0})
    recorder.flush()
    child = os.fork()
    if child == 0:
        try:
            recorder.record(1, 1, {"loss": -1.0})
            recorder.flush(timeout_s=0.2)
            recorder.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recorder.record(1, 1, {"loss": 1.0})
    recorder.close()
    assert sorted(endpoint.seqs()) == [0, 1]
    losses = [list(payload.batch.columns["loss"].values) for payload in endpoint.payloads() if len(payload.batch)]
    assert losses == [[1.0], [1.0]]


def test_no_secret_of_a_wrong_address_is_shown() -> None:
    for address in ("http://me:pass word@127.0.0.1/", "http://me:pass/word@127.0.0.1/", "https://pass@host/ x"):
        with pytest.raises(ConfigError) as caught:
            from_mapping({"http_endpoint": address})
        assert "pass" not in str(caught.value).replace("password", "")


def test_a_name_that_is_no_utf8_is_recorded_and_pushed(tmp_path: Path, endpoint: Any) -> None:
    """File names and arguments may hold any bytes; Python shows them as lone surrogates."""
    recorder = Recorder(from_mapping({"log_dir": tmp_path / "a", "name": "caf\udce9", "http_endpoint": endpoint.url}))
    recorder.open(facts={"data": "/data/\udcff"})
    recorder.record(0, 1, {"loss": 1.0})
    recorder.close()
    told = json.loads((tmp_path / "a" / "run.json").read_text("utf-8"))
    assert told["name"] == "caf\\udce9"
    assert endpoint.payloads()[0].header.run == "caf\\udce9"


@pytest.mark.usefixtures("quick")
def test_a_certificate_nobody_vouches_for_gets_neither_records_nor_token(tmp_path: Path, endpoint: Any) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = [
        tool,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        *subject,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    endpoint.server.socket = context.wrap_socket(endpoint.server.socket, server_side=True)
    push = Push(endpoint.url.replace("http:", "https:"), HEADER, TOKEN)
    push.offer(records(0, 5))
    sent, lost, reason = push.close(0.5)
    assert (sent, lost) == (0, 5)
    assert "certificate" in str(reason).lower()
    assert endpoint.requests == []
    assert TOKEN not in f"{push!r} {reason}"
