"""Wiring: store, reader, routes, page, gate and server in one process."""

from __future__ import annotations

import html
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import waitress
from dash import Dash
from flask import Flask, Response, request
from flask_compress import Compress
from werkzeug.exceptions import HTTPException

from dashboard.callbacks import is_expected, register
from dashboard.ingest.ingester import Ingester
from dashboard.layout import page
from dashboard.overlays import Overlays
from dashboard.receive import Receiver, register_refusal
from dashboard.security import guard
from dashboard.settings import Settings
from dashboard.store.spill import DiskCache
from dashboard.store.table import TableStore
from dashboard.stream import Api
from monitor_core.limits import MAX_PUSH_BYTES

#: Each open page holds one request for up to a second; this many pages are served without waiting.
THREADS = 32
MAX_REQUEST_BYTES = 1 << 20  # the page sends a few hundred bytes; caps what is read before it is parsed


class Service:
    """A dashboard that can be run and ended."""

    def __init__(
        self, server: Flask, ingester: Ingester, listening: socket.socket, receiver: Receiver | None = None
    ) -> None:
        self.server = server
        self._ingester = ingester
        self._receiver = receiver
        largest = MAX_PUSH_BYTES if receiver else MAX_REQUEST_BYTES
        self._waitress = waitress.create_server(
            server, sockets=[listening], threads=THREADS, ident=None, max_request_body_size=largest,
            asyncore_use_poll=True,  # select() fails once there are 1,024 descriptors, which a receiver of many runs has
        )  # fmt: skip

    def run(self) -> None:
        """Serve until ``stop``."""
        self._ingester.start()
        try:
            self._waitress.run()
        finally:
            self._ingester.stop()
            if self._receiver is not None:
                self._receiver.close()

    def stop(self) -> None:
        """Called by a signal handler in the serving thread, which waitress ends in an orderly way."""
        raise SystemExit(0)


def build(settings: Settings, listening: socket.socket) -> Service:
    """Everything put together; nothing runs yet."""
    store = TableStore(settings.memory_budget_bytes, DiskCache(settings.cache_dir))
    overlays = Overlays()
    ingester = Ingester(settings.logdirs, store, overlays, settings.reload_interval_s)
    receiver = Receiver(settings.logdirs[0]) if settings.receive else None
    server = make_server(settings, Api(store, ingester, overlays), receiver)
    return Service(server, ingester, listening, receiver)


def make_server(settings: Settings, api: Api, receiver: Receiver | None = None) -> Flask:
    """The Flask server with the page, the routes and the gate; without a receiver nothing in it writes."""
    server = Flask("msmon")
    server.config["MAX_CONTENT_LENGTH"] = MAX_REQUEST_BYTES
    if receiver is not None:
        receiver.register(server)
    else:
        register_refusal(server)
    app = make_dash(settings, server)
    register(app)
    api.register(server)
    guard(server, settings, app.csp_hashes())
    _check_callbacks(server)
    _tidy_errors(server)
    server.wsgi_app = _below(settings.path_prefix, server.wsgi_app)  # type: ignore[method-assign]
    # Text only: the live route's numbers do not shrink, and compressing them would cost more than it saves.
    server.config["COMPRESS_MIMETYPES"] = [
        "text/html",
        "text/css",
        "application/javascript",
        "text/javascript",
        "application/json",
    ]
    Compress(server)
    return server


def make_dash(settings: Settings, server: Flask) -> Dash:
    """The page without its callbacks."""
    app = Dash(
        "msmon",
        server=server,
        assets_folder=str(assets_folder()),
        routes_pathname_prefix="/",
        requests_pathname_prefix=settings.path_prefix,
        title=html.escape(settings.window_title),  # Dash puts it into the page as it is
        update_title=None,
        suppress_callback_exceptions=True,  # graphs of added panels come and go
        enable_mcp=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.layout = page(settings)
    return app


def assets_folder() -> Path:
    """``dashboard/assets`` of an installed wheel, or the checkout's top-level ``assets``."""
    here = Path(__file__).resolve().parent
    packaged = here / "assets"
    return packaged if packaged.is_dir() else here.parent / "assets"


def _below(prefix: str, serve: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Serve with and without the prefix: some proxies strip it, some do not, and the printed address has it."""

    def strip(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if prefix != "/" and path.startswith(prefix):
            environ["PATH_INFO"] = path[len(prefix) - 1 :]
        return serve(environ, start_response)

    return strip


def _check_callbacks(server: Flask) -> None:
    @server.before_request
    def check() -> Response | None:
        if request.path != "/_dash-update-component" or is_expected(request.get_json(silent=True)):
            return None
        return Response("400 Bad Request: not a request of this page\n", 400, mimetype="text/plain")


def _tidy_errors(server: Flask) -> None:
    """An unknown component package makes Dash raise: that is a wrong address, not our failure."""

    @server.errorhandler(Exception)
    def tell(error: Exception) -> Any:
        if isinstance(error, HTTPException):
            return error
        if type(error).__name__ == "DependencyException":
            return "404 Not Found: no such component package\n", 404, {"Content-Type": "text/plain"}
        server.logger.error("a request failed", exc_info=error)
        return "500 Internal Server Error: see the log of msmon-dash\n", 500, {"Content-Type": "text/plain"}
