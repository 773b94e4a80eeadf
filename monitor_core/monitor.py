"""The recorder: from a step's scalars to files, without any framework.

The training thread only puts a tuple into the bounded buffer. One background thread encodes, writes, runs the detectors and says what they
found. Nothing here raises into training once ``open`` has succeeded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from monitor_core import signals
from monitor_core.buffer import BoundedBuffer
from monitor_core.clock import Clock, SystemClock
from monitor_core.config import MonitorConfig
from monitor_core.detectors import Finding, default_detectors
from monitor_core.limits import CLOSE_TIMEOUT_S, DRAIN_RECORDS, FLUSH_INTERVAL_S, POLL_INTERVAL_S, RETRY_INTERVAL_S
from monitor_core.manifest import Status
from monitor_core.record import NO_NESTED, Record
from monitor_core.run_manifest import RunManifest
from monitor_core.sink import Sink, make_sinks
from monitor_core.writers.file import FileSystem
from monitor_core.writers.post import token_from_environment
from monitor_core.writers.push import Push
from monitor_core.writers.run_files import append_event, prepare_directory

_log = logging.getLogger("msmon")
_new = tuple.__new__


class FlushReceipt(NamedTuple):
    """What a flush achieved."""

    last_seq: int
    """Every record up to this ``seq`` is in the files (those counted as dropped excepted); -1: none."""
    durable: bool
    """They also survive a power loss."""
    dropped: int
    """Records of this attempt lost so far: to the buffer's bound, refused by a format, or unwritten when it ended."""


class Recorder:
    """Records steps of one rank into one run directory.

    ``on_finding`` is called in the background thread for each new finding.
    """

    def __init__(
        self,
        config: MonitorConfig,
        *,
        rank: int = 0,
        world_size: int = 1,
        versions: Mapping[str, str] | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        clock: Clock | None = None,
        file_system: FileSystem | None = None,
    ) -> None:
        """Creates the directory and checks that it is writable (raises LogDirError); starts nothing."""
        self.directory = config.log_dir / f"rank_{rank}" if world_size > 1 else config.log_dir
        prepare_directory(self.directory)
        where = config.log_dir if rank == 0 else self.directory
        self._manifest = RunManifest(where, config, versions or {}, rank, world_size)
        self._clock = clock or SystemClock()
        self._wall = self._clock.wall
        self._file_system = file_system
        self._on_finding = on_finding
        self._buffer = BoundedBuffer(config.buffer_size)
        self._token = token_from_environment() if config.http_endpoint else None
        self._push: Push | None = None
        self._attempt = 0
        self._seq = self._unwritten = 0
        self._sinks: list[Sink] = []
        self._detectors = default_detectors()
        self._wake = threading.Event()
        self._done = threading.Condition()
        self._asked = self._answered = 0
        self._sync_asked = self._synced = False
        self._drained = -1
        self._closing = self._silenced = False
        self._errors: set[str] = set()
        self._thread: threading.Thread | None = None
        self.apply(config)

    def apply(self, config: MonitorConfig) -> None:
        """Take over what may change while running: collect_freq, debug, responses."""
        self._config = config
        # Also when the buffer may be half full, however large collect_freq is.
        self._every = 1 if config.debug else min(config.collect_freq, max(1, config.buffer_size // 2))

    @property
    def is_open(self) -> bool:
        """Whether ``record`` is wanted now."""
        return self._thread is not None and not self._closing and not self._silenced

    @property
    def started(self) -> bool:
        """Whether ``open`` ever claimed an attempt."""
        return self._attempt > 0

    @property
    def dropped(self) -> int:
        """Records of this attempt lost so far."""
        return self._unwritten + self._buffer.dropped + max((sink.rejected for sink in self._sinks), default=0)

    def open(self, hooks: int | None = None, facts: Mapping[str, Any] | None = None) -> None:
        """Claim an attempt, write ``run.json``, start the background thread. Does nothing when open. Raises OSError.

        ``hooks``: how many are bound to the train network, for ``msmon verify``. ``facts``: what the training was set up with.
        """
        if self.is_open or self._silenced or signals.ending():
            return
        if self._thread is not None and self._thread.is_alive():
            raise OSError(
                f"{self.directory}: the disk has not yet taken the records of attempt {self._attempt}: check it"
            )
        header = self._manifest.claim(self._clock.wall(), hooks, facts or {})
        self._attempt = header.attempt
        self._seq = self._unwritten = 0
        self._drained = -1
        self._buffer = BoundedBuffer(self._config.buffer_size)
        self._sinks = make_sinks(self._config, self.directory, header, self._file_system, self._clock)
        if self._config.http_endpoint:
            self._push = Push(self._config.http_endpoint, header, self._token)
            self._push.tell(self._manifest.to_json())
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="msmon-flusher", daemon=True)
        self._thread.start()
        signals.opened(self)

    def record(
        self, step: int, epoch: int | None, scalars: Mapping[str, float], nested: Mapping[str, object] = NO_NESTED
    ) -> None:
        """Take one step; never blocks, never raises for a full disk. ``scalars`` must not be changed afterwards."""
        seq = self._seq
        # Past Record's own __new__, which would only take the arguments apart and put them together again.
        self._buffer.put(_new(Record, (seq, self._attempt, step, epoch, self._wall(), scalars, nested)))
        self._seq = seq + 1

    def flush(self, *, durable: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> FlushReceipt:
        """Wait until what was recorded before this call is written, at most ``timeout_s`` seconds."""
        with self._done:
            self._asked += 1
            ticket = self._asked
            self._sync_asked |= durable
            self._wake.set()
            alive = self._thread is not None and self._thread.is_alive()
            answered = alive and self._done.wait_for(lambda: self._answered >= ticket, timeout_s)
            last = min((sink.last_seq for sink in self._sinks), default=-1)
            return FlushReceipt(last, bool(durable and answered and self._synced), self.dropped)

    def explain(self, reasons: Mapping[str, str], notes: Sequence[str] = ()) -> None:
        """Metrics that cannot be measured here with the reason, and facts that readers must know; both go to ``run.json``."""
        self._manifest.explain(reasons, notes)

    def close(self, status: Status = "finished", reason: str | None = None) -> FlushReceipt:
        """Write what is left, durably, and say in ``run.json`` how the attempt ended. Gives up after CLOSE_TIMEOUT_S."""
        if not self.is_open:
            return FlushReceipt(min((sink.last_seq for sink in self._sinks), default=-1), False, self.dropped)
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        self._manifest.update(ended=self._clock.wall(), status=status, reason=reason)
        receipt = self.flush(durable=True, timeout_s=CLOSE_TIMEOUT_S)
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._end_push(deadline)
        signals.closed(self)
        return receipt._replace(dropped=self.dropped)

    def silence(self) -> None:
        """In a forked child: the files and the thread belong to the parent."""
        self._silenced = True

    def _run(self) -> None:
        while True:
            self._sleep()
            last_round = self._closing
            ticket, sync = self._asked, self._sync_asked
            try:
                self._round(sync or last_round)
            except Exception as error:  # noqa: BLE001 - the thread must outlive any defect; records keep being retried
                self._complain(f"the recorder had an unexpected error and goes on: {type(error).__name__}: {error}")
            with self._done:
                self._answered = ticket
                self._sync_asked &= not sync
                self._done.notify_all()
            if last_round:
                return

    def _sleep(self) -> None:
        """Until somebody asks, a batch is full, or the time for a smaller one has come.

        It looks for itself: waking it would cost the training thread more than recording a step does.
        """
        failing = any(sink.pending for sink in self._sinks)
        end = time.monotonic() + (RETRY_INTERVAL_S if failing else FLUSH_INTERVAL_S)
        while not self._wake.wait(POLL_INTERVAL_S):
            if time.monotonic() >= end or (len(self._buffer) >= self._every and not failing):
                break
        self._wake.clear()

    def _round(self, sync: bool) -> None:
        """Write everything that is buffered now, in bounded batches."""
        todo = len(self._buffer)
        while self._write_pending() and todo > 0:
            records = self._buffer.drain(DRAIN_RECORDS)
            todo -= len(records)
            for sink in self._sinks:
                sink.pending = records
            if not records:
                break
            self._drained = records[-1].seq
            self._write_pending()
            if self._push is not None:
                self._push.offer(records)
            self._detect(records)
        if sync:
            self._synced = self._attempted(self._sync)
        if self._closing:
            self._settle()
        if self._manifest.stale:
            self._write_manifest()

    def _write_manifest(self) -> None:
        if self._push is not None:
            self._push.tell(self._manifest.to_json())
        self._attempted(self._manifest.write)

    def _end_push(self, deadline: float) -> None:
        """What did not reach the endpoint is told in ``run.json``; the files have it."""
        if self._push is None:
            return
        delivery, self._push = self._push.close(max(1.0, deadline - time.monotonic())), None
        if delivery.lost:
            told = f"http_endpoint: {delivery.lost} records were not delivered: {delivery.reason}; the files here have them"
            self._manifest.explain({}, [told])
            self._write_manifest()

    def _settle(self) -> None:
        """The end: what the disk has not taken is lost. A record that comes while SIGTERM closes us is none of this attempt."""
        pending = max((len(sink.pending) for sink in self._sinks), default=0)
        self._unwritten = pending + len(self._buffer) if pending else 0
        last = self._seq - 1 if pending else self._drained
        self._manifest.update(last_seq=None if last < 0 else last, dropped=self.dropped)

    def _write_pending(self) -> bool:
        """Whether every sink has nothing left to write."""
        return all([self._attempted(sink.write) for sink in self._sinks])  # noqa: C419 - each sink must get its turn

    def _sync(self) -> None:
        for sink in self._sinks:
            (sink.writer.close if self._closing else sink.writer.sync)()

    def _attempted(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except OSError as error:
            self._complain(str(error))
            return False
        return True

    def _complain(self, message: str) -> None:
        """Once per message: a failing disk is tried every second and must not flood the user's terminal."""
        if message not in self._errors and len(self._errors) < 100:
            self._errors.add(message)
            _log.error("%s", message)

    def _detect(self, records: Sequence[Record]) -> None:
        for record in records:
            scalars = record.scalars
            for detector in self._detectors:
                if scalars.keys().isdisjoint(detector.inputs):
                    continue  # no row of this detector's: an evaluation between two steps must not break its windows
                for finding in detector.update(record.step, [scalars.get(name) for name in detector.inputs]):
                    self._tell(finding)

    def _tell(self, finding: Finding) -> None:
        event = {
            "type": "finding", "time": self._clock.wall(), "rank": self._manifest.rank, "attempt": self._attempt,
            **asdict(finding),
        }  # fmt: skip
        self._attempted(lambda: append_event(self._manifest.directory, event))
        if self._on_finding is not None:
            self._on_finding(finding)
