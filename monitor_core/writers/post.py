"""One POST at a time to one address, with every way in which an endpoint can hold a client up bounded.

``http.client`` follows no redirect and knows no proxy from the environment, so the token goes to this host only.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import os
import socket
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from monitor_core import limits
from monitor_core.errors import ConfigError

DEFAULT_PATH = "/api/records"

#: What to do about an answer, where the number alone does not say it.
HINTS = {
    401: "put the receiver's token into MSMON_HTTP_TOKEN",
    403: "put the receiver's token into MSMON_HTTP_TOKEN",
    404: "expected the address of a receiver; is msmon-dash started with --receive?",
    405: "expected the address of a receiver; is msmon-dash started with --receive?",
}
_REDIRECT_HINT = "redirects are not followed, as they would carry the token elsewhere: give the final address"


class Answer(NamedTuple):
    """What an endpoint said."""

    status: int
    retry_after_s: float
    """0 where it did not say."""

    def __str__(self) -> str:
        hint = _REDIRECT_HINT if 300 <= self.status < 400 else HINTS.get(self.status)
        return f"HTTP {self.status}" + (f" ({hint})" if hint else "")


class _Lines:
    """A reader of lines that remembers the last one."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.last = b""

    def readline(self, most: int = -1) -> bytes:
        self.last = self._source.readline(most)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class _WholeHead(http.client.HTTPResponse):
    """Takes no answer whose head breaks off: ``http.client`` itself takes the end of the connection for the end of the head."""

    def begin(self) -> None:
        source: Any = self.fp
        lines: Any = _Lines(source)
        self.fp = lines
        super().begin()  # when it raises, the connection is closed
        self.fp = source
        if lines.last not in (b"\r\n", b"\n"):
            raise http.client.RemoteDisconnected("the answer broke off in its head")


class Poster:
    """One thread posts; any other may look whether it hangs and cut it off."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        self._endpoint: SplitResult = urlsplit(endpoint)
        self._token = token
        self._socket: socket.socket | None = None
        self._since: float | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Raises OSError, http.client.HTTPException or ValueError when there is no answer."""
        target = self._endpoint
        path = target.path if target.path not in ("", "/") else DEFAULT_PATH
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._since = time.monotonic()
        connection = self._connection()
        try:
            connection.connect()
            self._socket = connection.sock
            url = f"{path}?{target.query}" if target.query else path
            connection.request("POST", url, body, {"User-Agent": "msmon", **headers, **token})
            answer = connection.getresponse()
            answer.read(limits.MAX_REPLY_BYTES)
            return Answer(answer.status, seconds_to_wait(answer.getheader("Retry-After"), time.time()))
        finally:
            self._socket = self._since = None
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        name, port = self._endpoint.hostname or "", self._endpoint.port
        timeout_s = limits.PUSH_TIMEOUT_S
        if self._endpoint.scheme == "https":
            context = ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                name, port, timeout=timeout_s, context=context
            )
        else:
            made = http.client.HTTPConnection(name, port, timeout=timeout_s)
        made.response_class = _WholeHead
        return made

    def cut_if_stuck(self) -> None:
        """The timeout counts from byte to byte: an endpoint that sends one now and then would hold the thread for ever."""
        since = self._since
        if since is not None and time.monotonic() - since > limits.PUSH_REQUEST_S:
            self.cut()

    def cut(self) -> None:
        """End the request under way, which then fails."""
        connected = self._socket
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


def seconds_to_wait(header: str | None, now: float) -> float:
    """``Retry-After``, in seconds or as a date (RFC 9110), as seconds from ``now`` (UTC seconds since 1970); 0 for anything else."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


def token_from_environment() -> str | None:
    """``MSMON_HTTP_TOKEN``, or the content of the file that ``MSMON_HTTP_TOKEN_FILE`` names.

    Raises ConfigError, which never shows the token.
    """
    token, file = os.environ.get("MSMON_HTTP_TOKEN"), os.environ.get("MSMON_HTTP_TOKEN_FILE")
    if not token and file:
        try:
            token = Path(file).read_text("utf-8")
        except OSError as error:
            raise ConfigError(
                f"MSMON_HTTP_TOKEN_FILE={file}: cannot be read ({error.strerror}); expected a file with the token"
            ) from error
        except ValueError:
            raise ConfigError(f"MSMON_HTTP_TOKEN_FILE={file}: cannot be read as text; expected a token") from None
    token = (token or "").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("MSMON_HTTP_TOKEN: expected printable ASCII without spaces; the value is not shown here")
    return token or None
