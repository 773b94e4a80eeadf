"""An HTTP endpoint that answers as a test wants, and a real receiver behind a real server, both on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboard.cli import bind
from dashboard.settings import Settings
from monitor_core import limits
from monitor_core.formats.payload import Payload, decode_payload


class Endpoint:
    """Keeps every request; ``behave(handler, body)`` answers (None: 200)."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.behave: Callable[[BaseHTTPRequestHandler, bytes], int | None] = lambda handler, body: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.path, dict(self.headers), body))
                status = outer.behave(self, body)
                if status != -1:  # -1: it has answered, or never will
                    self.send_response(status or 200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass  # tests hang up on purpose

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def payloads(self) -> list[Payload]:
        return [decode_payload(body) for _, _, body in self.requests]

    def seqs(self) -> list[int]:
        """Of all records that came, in the order in which they came."""
        return [seq for payload in self.payloads() for seq in payload.batch.seq.tolist()]

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.stop()


@pytest.fixture
def other_endpoint() -> Iterator[Endpoint]:
    found = Endpoint()
    yield found
    found.stop()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and patience for tests."""
    monkeypatch.setattr(limits, "PUSH_BACKOFF_S", 0.01)
    monkeypatch.setattr(limits, "PUSH_BACKOFF_CAP_S", 0.2)
    monkeypatch.setattr(limits, "PUSH_TIMEOUT_S", 0.5)


class Receiving:
    """``msmon-dash --receive`` in this process, on a real socket."""

    def __init__(self, root: Path, port: int = 0, **settings: Any) -> None:
        from dashboard.app import build

        listening = bind("127.0.0.1", port, fixed=True)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.service = build(Settings((root,), receive=True, **settings), listening)
        self.thread = threading.Thread(target=self.service._waitress.run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.service._waitress.close()
        self.service._waitress.task_dispatcher.shutdown()
        if self.service._receiver is not None:
            self.service._receiver.close()


@pytest.fixture
def receiving(tmp_path: Path) -> Iterator[Callable[..., Receiving]]:
    started: list[Receiving] = []

    def start(root: Path | None = None, **settings: Any) -> Receiving:
        started.append(Receiving(root or tmp_path / "received", **settings))
        return started[-1]

    yield start
    for one in started:
        one.stop()
