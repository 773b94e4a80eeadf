"""Records to an HTTP endpoint, beside the files: a thread and a bounded spool of its own, so that nothing ever waits for a network.

The files stay the truth. A batch is delivered when the endpoint answered 2xx; until then it is sent again, with growing pauses. Each
record is identified by (run, rank, attempt, seq), so a receiver drops repeats. What the spool's bound or a refusal cost is counted, and
told in ``run.json``.
"""

from __future__ import annotations

import http.client
import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from monitor_core import limits, signals
from monitor_core.errors import FormatError
from monitor_core.formats.common import plain
from monitor_core.formats.payload import CONTENT_TYPE, encode_payload
from monitor_core.record import FileHeader, Record
from monitor_core.redact import redact_endpoint
from monitor_core.writers.post import Poster
from monitor_core.writers.spool import Spool

_log = logging.getLogger("msmon")
#: The batch itself is at fault, and would be for ever; anything else may be put right while the training runs.
_REFUSED = frozenset({400, 413, 415, 422})
_MOST_COMPLAINTS = 10  # different troubles that are logged, each once


class Delivery(NamedTuple):
    """What became of the records that were offered."""

    sent: int
    """The endpoint said that it has them."""
    lost: int
    """All others: dropped by the spool's bound, refused, still waiting, or sent without an answer when it ended."""
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
        spool_bytes: int = limits.PUSH_SPOOL_BYTES,
    ) -> None:
        self._poster = Poster(endpoint, token)
        self._shown = redact_endpoint(endpoint)
        self._header = header
        self._run_name = plain(header.run)
        self._spool = Spool(spool_records, spool_bytes)
        self._manifest: Mapping[str, Any] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._deadline: float | None = None
        self._offered = self._sent = 0
        self._reason: str | None = None
        self._last_failure: str | None = None
        self._complaints: set[str] = set()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="msmon-push", daemon=True)
        self._thread.start()

    def offer(self, records: Sequence[Record]) -> None:
        """Take records to be sent; beyond the bounds the oldest go, and are counted."""
        with self._lock:
            self._offered += len(records)
            self._lose(self._spool.add(records), "the spool was full")
        self._poster.cut_if_stuck()
        self._wake.set()

    def tell(self, manifest: Mapping[str, Any]) -> None:
        """Send this ``run.json`` along with the next batch, or alone."""
        with self._lock:
            self._manifest = manifest
        self._wake.set()

    def close(self, timeout_s: float = limits.CLOSE_TIMEOUT_S) -> Delivery:
        """Try until everything is delivered or the time is up (a second more at most); what is left then counts as lost.

        After SIGTERM at most PUSH_SIGTERM_S: the files of other recorders must still be ended before the kill.
        """
        if signals.ending():
            timeout_s = min(timeout_s, limits.PUSH_SIGTERM_S)
        self._deadline = time.monotonic() + timeout_s
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._poster.cut()
            self._thread.join(1.0)
        with self._lock:
            lost = max(0, self._offered - self._sent)
            failure = f" ({self._last_failure})" if self._last_failure else ""
            self._lose(self._spool.clear(), f"the endpoint was not reached before the training ended{failure}")
            if lost and self._reason is None:
                self._reason = "the endpoint had not answered when the training ended"
            reason = f"attempt {self._header.attempt}: {self._reason}" if lost else None
            return Delivery(self._sent, lost, reason)

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
            records = self._spool.take(limits.PUSH_BATCH_RECORDS, limits.PUSH_BATCH_BYTES)
            manifest, self._manifest = self._manifest, None
        failure: _Failure | None
        try:
            failure = self._deliver(records, manifest)
        except Exception as error:  # noqa: BLE001 - the thread must outlive any defect; what was sent twice is written once
            failure = _Failure(f"an unexpected {type(error).__name__}: {error}", 0.0, records)
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
            answer = self._poster.post(body, self._headers(records))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return _Failure(f"{type(error).__name__}: {error}", 0.0, records)
        if 200 <= answer.status < 300:
            with self._lock:
                self._sent += len(records)
            return None
        if answer.status in _REFUSED:
            return self._halves(records, manifest, f"refused with {answer}")
        return _Failure(str(answer), answer.retry_after_s, records)

    def _halves(self, records: Sequence[Record], manifest: Mapping[str, Any] | None, why: str) -> _Failure | None:
        """One bad record, or a bad ``run.json``, costs only itself; what cannot be sent although it is alone is lost."""
        if manifest is not None and records:
            failure = self._deliver((), manifest)
            return self._deliver(records, None) if failure is None else failure._replace(records=records)
        if len(records) <= 1:
            with self._lock:
                self._lose(len(records), why)
            self._complain(f"{'a record' if records else 'run.json'} was not delivered: {why}")
            return None
        middle = len(records) // 2
        first = self._deliver(records[:middle], None)
        if first is not None:
            return first._replace(records=[*first.records, *records[middle:]])
        return self._deliver(records[middle:], None)

    def _failed(self, failure: _Failure, manifest: Mapping[str, Any] | None) -> None:
        """Put what is left back in front, as far as there is room, and pause."""
        why, retry_after_s, records = failure
        with self._lock:
            self._lose(self._spool.restore(records), f"the endpoint was not reached: {why}")
            self._manifest = self._manifest or manifest
            self._last_failure = why
        self._complain(
            f"{why}; records wait (at most {self._spool.capacity}) and are sent again; the files have them anyway"
        )
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

    def _headers(self, records: Sequence[Record]) -> dict[str, str]:
        span = f"{records[0].seq}-{records[-1].seq}" if records else "run"
        key = f"{quote(self._run_name, safe='')[:200]}/{self._header.rank}/{self._header.attempt}/{span}"
        return {"Content-Type": CONTENT_TYPE, "Idempotency-Key": key}

    def _lose(self, count: int, why: str) -> None:
        if count > 0:
            self._reason = why

    def _complain(self, message: str) -> None:
        """Once per message, and not for ever: a dead endpoint is tried for days and must not flood the user's terminal."""
        if message not in self._complaints and len(self._complaints) < _MOST_COMPLAINTS:
            self._complaints.add(message)
            _log.warning("http_endpoint %s: %s (said once)", self._shown, message)
