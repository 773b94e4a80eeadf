"""Records to an HTTP endpoint, beside the files: a thread and a bounded spool of its own, so that nothing ever waits for a network.

The files stay the truth. A batch is delivered when the endpoint answered 2xx; until then it is sent again, with growing pauses. Each
record is identified by (run, rank, attempt, seq), so a receiver drops repeats. What the spool's bound or a refusal cost is counted, and
told in ``run.json``.
"""

from __future__ import annotations

import http.client
import logging
import os
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from monitor_core import limits
from monitor_core.errors import ConfigError, FormatError
from monitor_core.formats.payload import CONTENT_TYPE, encode_payload
from monitor_core.record import FileHeader, Record
from monitor_core.redact import redact_text

_log = logging.getLogger("msmon")
DEFAULT_PATH = "/api/records"
#: The batch itself is at fault, and would be for ever; anything else may be put right while the training runs.
_REFUSED = frozenset({400, 413, 415, 422})


class Delivery(NamedTuple):
    """What became of the records that were offered."""

    sent: int
    lost: int
    """Dropped by the spool's bound, refused, or still waiting when it ended."""
    reason: str | None
    """Why, if any were lost."""


class _Failure(NamedTuple):
    """Why some records are not delivered yet, and which."""

    why: str
    retry_after_s: float
    records: Sequence[Record]


class Push:
    """Sends to one endpoint; any thread may offer."""

    def __init__(
        self,
        endpoint: str,
        header: FileHeader,
        token: str | None = None,
        *,
        spool_records: int = limits.PUSH_SPOOL_RECORDS,
    ) -> None:
        self._endpoint = urlsplit(endpoint)
        self._shown = redact_text(endpoint)
        self._header = header
        self._token = token
        self._spool: deque[Record] = deque(maxlen=spool_records)
        self._manifest: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._deadline: float | None = None
        self._sent = self._lost = self._under_way = 0
        self._reason: str | None = None
        self._complained = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="msmon-push", daemon=True)
        self._thread.start()

    def offer(self, records: Sequence[Record]) -> None:
        """Take records to be sent; beyond the bound the oldest go, and are counted."""
        with self._lock:
            full = max(0, len(self._spool) + len(records) - (self._spool.maxlen or 0))
            self._spool.extend(records)
            self._lose(full, "the spool was full")
        self._wake.set()

    def tell(self, manifest: Mapping[str, Any]) -> None:
        """Send this ``run.json`` along with the next batch, or alone."""
        with self._lock:
            self._manifest = manifest
        self._wake.set()

    def close(self, timeout_s: float = limits.CLOSE_TIMEOUT_S) -> Delivery:
        """Try until everything is delivered or the time is up; what is left then counts as lost."""
        self._deadline = time.monotonic() + timeout_s
        self._wake.set()
        self._thread.join(timeout_s)
        with self._lock:
            self._lose(len(self._spool) + self._under_way, "the endpoint was not reached before the training ended")
            self._under_way = 0
            self._spool.clear()
            return Delivery(self._sent, self._lost, self._reason)

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._something_left():
                if self._time_is_up():
                    return
                self._send_some()
            if self._deadline is not None:
                return

    def _something_left(self) -> bool:
        return bool(self._spool) or self._manifest is not None

    def _time_is_up(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _send_some(self) -> None:
        with self._lock:
            records = [self._spool.popleft() for _ in range(min(len(self._spool), limits.PUSH_BATCH_RECORDS))]
            manifest, self._manifest = self._manifest, None
            self._under_way = len(records)
        failure = self._deliver(records, manifest)
        with self._lock:
            self._under_way = 0
        if failure is None:
            self._failures = 0
        else:
            self._failed(failure, manifest)

    def _deliver(self, records: Sequence[Record], manifest: Mapping[str, Any] | None) -> _Failure | None:
        """None when the endpoint has them, or they can never be delivered."""
        try:
            body = encode_payload(self._header, records, manifest)
        except FormatError as error:
            return self._halves(records, manifest, str(error))
        if len(body) > limits.PUSH_TARGET_BYTES and len(records) > 1:
            return self._halves(records, manifest, "")
        try:
            status, retry_after_s = self._post(body, records)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _Failure(f"{type(error).__name__}: {error}", 0.0, records)
        if 200 <= status < 300:
            self._sent += len(records)
            self._under_way -= len(records)
            return None
        if status in _REFUSED:
            return self._halves(records, manifest, f"{self._shown} refused them with HTTP {status}")
        return _Failure(f"HTTP {status}", retry_after_s, records)

    def _halves(self, records: Sequence[Record], manifest: Mapping[str, Any] | None, why: str) -> _Failure | None:
        """One bad record costs only itself; what cannot be sent although it is alone is lost."""
        if len(records) <= 1:
            with self._lock:
                self._lose(len(records), why)
            return None
        middle = len(records) // 2
        first = self._deliver(records[:middle], manifest)
        if first is not None:
            return first._replace(records=[*first.records, *records[middle:]])
        return self._deliver(records[middle:], None)

    def _failed(self, failure: _Failure, manifest: Mapping[str, Any] | None) -> None:
        """Put what is left back in front, as far as there is room, and pause."""
        why, retry_after_s, records = failure
        with self._lock:
            room = (self._spool.maxlen or 0) - len(self._spool)
            kept = records[max(0, len(records) - room) :]
            self._spool.extendleft(reversed(kept))
            self._lose(len(records) - len(kept), f"the endpoint was not reached: {why}")
            self._manifest = self._manifest or manifest
        if not self._complained:
            self._complained = True
            text = "http_endpoint %s: %s; records wait (at most %d) and are sent again; the files have them anyway (said once)"
            _log.warning(text, self._shown, why, self._spool.maxlen)
        self._failures += 1
        longest = min(limits.PUSH_BACKOFF_CAP_S, limits.PUSH_BACKOFF_S * 2 ** min(self._failures - 1, 20))
        self._pause(max(random.uniform(0, longest), min(retry_after_s, limits.PUSH_BACKOFF_CAP_S)))

    def _pause(self, seconds: float) -> None:
        """Cut short by ``close``, not by new records."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._deadline is not None:
                time.sleep(min(left, 0.5, max(0.0, self._deadline - time.monotonic())))
                return
            self._wake.wait(min(left, 0.2))
            self._wake.clear()

    def _post(self, body: bytes, records: Sequence[Record]) -> tuple[int, float]:
        """One request; status and seconds to wait.

        ``http.client`` follows no redirect and knows no proxy from the environment: the token goes to this host only.
        """
        target = self._endpoint
        if target.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                target.hostname or "", target.port, timeout=limits.PUSH_TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=limits.PUSH_TIMEOUT_S)
        path = target.path if target.path not in ("", "/") else DEFAULT_PATH
        try:
            connection.request("POST", f"{path}?{target.query}" if target.query else path, body, self._headers(records))
            answer = connection.getresponse()
            answer.read(limits.MAX_REPLY_BYTES)
            return answer.status, _seconds(answer.getheader("Retry-After"))
        finally:
            connection.close()

    def _headers(self, records: Sequence[Record]) -> dict[str, str]:
        span = f"{records[0].seq}-{records[-1].seq}" if records else "run"
        key = f"{quote(self._header.run, safe='')[:200]}/{self._header.rank}/{self._header.attempt}/{span}"
        headers = {"Content-Type": CONTENT_TYPE, "Idempotency-Key": key, "User-Agent": "msmon"}
        return headers | ({"Authorization": f"Bearer {self._token}"} if self._token else {})

    def _lose(self, count: int, why: str) -> None:
        if count > 0:
            self._lost += count
            self._reason = why


def token_from_environment() -> str | None:
    """``MSMON_HTTP_TOKEN``, or the content of the file that ``MSMON_HTTP_TOKEN_FILE`` names.

    Raises ConfigError, which never shows the token.
    """
    token, file = os.environ.get("MSMON_HTTP_TOKEN"), os.environ.get("MSMON_HTTP_TOKEN_FILE")
    if not token and file:
        try:
            token = Path(file).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"MSMON_HTTP_TOKEN_FILE={file}: cannot be read as text ({error}); expected a file with the token"
            ) from error
    token = (token or "").strip()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("MSMON_HTTP_TOKEN: expected printable ASCII without spaces; the value is not shown here")
    return token or None


def _seconds(header: str | None) -> float:
    """``Retry-After`` in seconds; its form with a date counts as none."""
    return float(header) if header and header.isdigit() else 0.0
