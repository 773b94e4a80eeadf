"""The HTTP writer against an endpoint that answers as it likes: nothing waits, nothing is lost silently, no secret goes astray."""

from __future__ import annotations

import json
import logging
import math
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from monitor_core import limits
from monitor_core.config import from_mapping
from monitor_core.errors import ConfigError
from monitor_core.monitor import Recorder
from monitor_core.record import FileHeader, Record
from monitor_core.writers.post import token_from_environment
from monitor_core.writers.push import Push

HEADER = FileHeader("my run", 0, 1, 3, 1.7e9, "host", 7)
TOKEN = "s3cret-token"


def records(count: int, start: int = 0, **scalars: float) -> list[Record]:
    return [Record(seq, 3, seq, 1, 1.7e9 + seq, {"loss": float(seq)} | scalars) for seq in range(start, start + count)]


def test_every_record_arrives_once_and_in_order(endpoint: Any) -> None:
    push = Push(endpoint.url, HEADER, TOKEN)
    for start in range(0, 5000, 50):
        push.offer(records(50, start))
    push.tell({"name": "my run"})
    assert push.close() == (5000, 0, None)
    assert endpoint.seqs() == list(range(5000))
    first = endpoint.payloads()[0]
    assert first.header == HEADER
    assert [payload.manifest for payload in endpoint.payloads() if payload.manifest] == [{"name": "my run"}]
    path, headers, _ = endpoint.requests[0]
    assert path == "/api/records"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["Idempotency-Key"].startswith("my%20run/0/3/")


def test_an_endpoint_with_a_path_is_taken_as_it_is(endpoint: Any) -> None:
    push = Push(f"{endpoint.url}/in/take?project=1", HEADER)
    push.offer(records(1))
    push.close()
    path, headers, _ = endpoint.requests[0]
    assert path == "/in/take?project=1"
    assert "Authorization" not in headers


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [500, 502, 503, 429, 408, 401, 404, 302, 204 + 100])
def test_trouble_that_may_pass_is_waited_for(endpoint: Any, status: int) -> None:
    endpoint.behave = lambda handler, body: status if len(endpoint.requests) <= 3 else None
    push = Push(endpoint.url, HEADER)
    push.offer(records(10))
    assert push.close() == (10, 0, None)
    assert endpoint.seqs()[-10:] == list(range(10))
    assert len(endpoint.requests) == 4


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_a_record_that_is_refused_costs_only_itself(endpoint: Any, status: int) -> None:
    from monitor_core.formats.payload import decode_payload

    endpoint.behave = lambda handler, body: status if 37 in decode_payload(body).batch.seq else None
    push = Push(endpoint.url, HEADER)
    push.offer(records(100))
    sent, lost, reason = push.close()
    assert (sent, lost) == (99, 1)
    assert f"HTTP {status}" in str(reason)


def test_a_record_that_cannot_be_encoded_costs_only_itself(endpoint: Any) -> None:
    push = Push(endpoint.url, HEADER)
    push.offer([*records(3), Record(3, 3, 2**70, 1, 0.0, {}), *records(3, 4)])
    sent, lost, _ = push.close()
    assert (sent, lost) == (6, 1)
    assert endpoint.seqs() == [0, 1, 2, 4, 5, 6]


def test_large_batches_are_sent_in_parts(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_TARGET_BYTES", 5000)
    push = Push(endpoint.url, HEADER)
    push.offer(records(1000))
    assert push.close() == (1000, 0, None)
    assert endpoint.seqs() == list(range(1000))
    assert max(len(body) for _, _, body in endpoint.requests) <= 5000


@pytest.mark.usefixtures("quick")
def test_the_endpoints_word_on_waiting_is_heeded_up_to_the_cap(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_BACKOFF_CAP_S", 5.0)
    times: list[float] = []

    def behave(handler: Any, body: bytes) -> int | None:
        times.append(time.monotonic())
        if len(times) > 1:
            return None
        handler.send_response(429)
        handler.send_header("Retry-After", "1")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return -1

    endpoint.behave = behave
    push = Push(endpoint.url, HEADER)
    push.offer(records(1))
    deadline = time.monotonic() + 5
    while len(times) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    push.close()
    assert times[1] - times[0] >= 0.95


@pytest.mark.usefixtures("quick")
def test_a_redirect_does_not_carry_the_token_to_another_host(endpoint: Any, other_endpoint: Any) -> None:
    def redirect(handler: Any, body: bytes) -> int:
        handler.send_response(302)
        handler.send_header("Location", f"{other_endpoint.url}/api/records")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return -1

    endpoint.behave = redirect
    push = Push(endpoint.url, HEADER, TOKEN)
    push.offer(records(5))
    sent, lost, reason = push.close(0.3)
    assert (sent, lost) == (0, 5)
    assert reason
    assert other_endpoint.requests == []


@pytest.mark.usefixtures("quick")
def test_a_proxy_in_the_environment_is_not_used(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    push = Push(endpoint.url, HEADER, TOKEN)
    push.offer(records(1))
    assert push.close() == (1, 0, None)


def hang_up(handler: Any, body: bytes) -> int:
    handler.connection.shutdown(socket.SHUT_RDWR)
    return -1


def never_answer(handler: Any, body: bytes) -> int:
    time.sleep(1.5)
    return -1


def break_off(handler: Any, body: bytes) -> int:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Len")
    handler.wfile.flush()
    handler.connection.shutdown(socket.SHUT_RDWR)
    return -1


def talk_nonsense(handler: Any, body: bytes) -> int:
    handler.wfile.write(b"\x00\xff" * 50_000)
    return -1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", [hang_up, never_answer, break_off, talk_nonsense])
def test_a_broken_connection_is_tried_again(endpoint: Any, fault: Any) -> None:
    endpoint.behave = lambda handler, body: fault(handler, body) if len(endpoint.requests) == 1 else None
    push = Push(endpoint.url, HEADER)
    push.offer(records(10))
    assert push.close() == (10, 0, None)
    assert endpoint.seqs()[-10:] == list(range(10))


@pytest.mark.usefixtures("quick")
def test_a_huge_reply_is_cut_off_unread(endpoint: Any) -> None:
    def flood(handler: Any, body: bytes) -> int:
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        with pytest.raises(OSError):  # the client hangs up
            while True:
                handler.wfile.write(b"x" * 65536)
        return -1

    endpoint.behave = flood
    push = Push(endpoint.url, HEADER)
    push.offer(records(1))
    begun = time.monotonic()
    assert push.close() == (1, 0, None)
    assert time.monotonic() - begun < 5


@pytest.mark.usefixtures("quick")
def test_a_dead_endpoint_holds_nothing_up_and_what_it_cost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor_core.monitor.CLOSE_TIMEOUT_S", 0.3)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{dead.getsockname()[1]}"
        push = Push(address, HEADER, TOKEN, spool_records=1000)
        begun = time.monotonic()
        for start in range(0, 5000, 50):
            push.offer(records(50, start))
        assert time.monotonic() - begun < 1
        assert len(push._spool) <= 1000
        sent, lost, reason = push.close(0.3)
        assert (sent, lost) == (0, 5000)
        assert "not reached" in str(reason)
        recorder = Recorder(from_mapping({"log_dir": tmp_path, "http_endpoint": address}))
        caplog.clear()
        recorder.open()
        with caplog.at_level(logging.WARNING):
            for seq in range(100):
                recorder.record(seq, 1, {"loss": 1.0})
            recorder.close()
    notes = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert len(notes) == 1
    assert "http_endpoint: 100 records were not delivered" in notes[0]
    said = [message for message in caplog.messages if "http_endpoint" in message]
    assert len(said) == 1, "said once, however often it is tried"


def test_the_token_is_in_no_file_log_or_error(
    tmp_path: Path, endpoint: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MSMON_HTTP_TOKEN", TOKEN)
    recorder = Recorder(from_mapping({"log_dir": tmp_path, "http_endpoint": f"{endpoint.url}/x?api_key=abc123def"}))
    recorder.open()
    recorder.record(1, 1, {"loss": math.nan})
    recorder.close()
    assert endpoint.requests[-1][1]["Authorization"] == f"Bearer {TOKEN}"
    everything = "".join(path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file())
    assert TOKEN not in everything + caplog.text
    assert "abc123def" not in everything + caplog.text


def test_the_token_comes_from_a_file_too_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    monkeypatch.delenv("MSMON_HTTP_TOKEN", raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("MSMON_HTTP_TOKEN_FILE", str(file))
    assert token_from_environment() == TOKEN
    file.write_text("two words\r\nX-Injected: yes")
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        token_from_environment()
    assert "Injected" not in str(caught.value)
    monkeypatch.setenv("MSMON_HTTP_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read"):
        token_from_environment()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("http://example.com/x", "expected https"), ("ftp://127.0.0.1/", "expected None or an address"),
        ("http://user:pw@127.0.0.1/", "without user and password"), ("https://", "expected None"), ("127.0.0.1:80", "expected None"),
        (7, "expected None"), ("http://127.0.0.1:99999/", "expected None"), ("http://127.0.0.1/a b", "without spaces"),
        ("http://127.0.0.1/#x", "without '#'"), ("http://127.0.0.1/\r\nX: y", "printable"), ("http://[::1", "expected None"),
        ("https://" + "x" * 3000, "expected None"),
    ],
)  # fmt: skip
def test_wrong_endpoints_are_refused_before_the_training(value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match="http_endpoint: got") as caught:
        from_mapping({"http_endpoint": value})
    assert expected in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "value", ["http://localhost:8600", "http://[::1]:8600/x", "https://monitor.example.com/api/records?p=1"]
)
def test_good_endpoints_are_taken(value: str) -> None:
    assert from_mapping({"http_endpoint": value}).http_endpoint == value
