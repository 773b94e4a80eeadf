"""``msmon-dash --receive``: takes what Monitors push (``http_endpoint``) and writes ordinary run directories. The only part that writes.

Each record is identified by (run, rank, attempt, seq) and written once, however often it is sent; an answer of 200 means that it is on
the disk. Which records are there already is read from the files themselves, so a restart forgets nothing.

Runs do not wait for each other: each rank's attempt has a lock of its own, and what would wait too long is told to come again, so that
a slow disk does not take the page's threads away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from flask import Flask, Response, jsonify, request

from dashboard.ingest.discover import open_regular
from dashboard.receive_names import RECEIVED, manifest_directory, rank_directory, run_directory
from dashboard.store.intervals import IntervalSet
from monitor_core.errors import FormatError
from monitor_core.formats import FORMATS, parse_file_name
from monitor_core.formats.payload import CONTENT_TYPE, Payload, decode_payload
from monitor_core.limits import DEFAULT_MAX_FILE_SIZE_BYTES, MAX_MANIFEST_BYTES, MAX_PUSH_BYTES
from monitor_core.logs import FileProblem, read_file
from monitor_core.manifest import Attempt, Manifest, from_json
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileSystem, FileWriter
from monitor_core.writers.run_files import manifest_bytes, read_manifest, write_manifest

_MAX_HOMES = 4096  # attempts whose records' numbers are kept in memory; what is forgotten is read from the files again
_MAX_AT_ONCE = 8  # requests decoded and written at once: of the server's 32 threads the page keeps 24
_BUSY_S = 4.0  # a request waits so long for another one of its attempt, below the sender's timeout
_RETRY_AFTER_S = 5  # said to senders when the disk refuses or all places are taken


class Taken(NamedTuple):
    """What became of a payload's records."""

    accepted: int
    duplicate: int


@dataclass(slots=True)
class _Home:
    """One rank's attempt on this disk; whoever holds ``lock`` may use it, unless it is ``gone`` by then."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    gone: bool = False
    manifest_directory: Path = Path()
    writer: FileWriter | None = None
    seen: IntervalSet = field(default_factory=IntervalSet)
    """``seq`` of the attempt's records that are in the files."""


class Receiver:
    """Writes below one log directory; any thread may call ``take``. One receiver per log directory."""

    def __init__(self, root: Path, *, file_system: FileSystem | None = None, max_open: int | None = None) -> None:
        self._root = root
        self._system = file_system or FileSystem()
        self._max_open = max_open or _files_to_spare()
        self._lock = threading.Lock()  # the two tables
        self._naming = threading.Lock()  # which run gets which folder
        self._places = threading.BoundedSemaphore(_MAX_AT_ONCE)
        self._homes: OrderedDict[FileHeader, _Home] = OrderedDict()
        self._open: OrderedDict[FileHeader, _Home] = OrderedDict()
        self._doubted: set[Path] = set()
        """Files whose fsync failed: a later one may report success for bytes that are lost."""

    def register(self, server: Flask) -> None:
        """Add the route."""
        server.add_url_rule("/api/records", view_func=self._records, methods=["POST"])

    def take(self, payload: Payload) -> Taken:
        """Write what is new. Raises FormatError for a payload that contradicts itself, and OSError when the disk refuses."""
        header, records = payload.header, _checked_records(payload)
        manifest = None if payload.manifest is None else _checked(payload.manifest)
        with self._home(header) as home:
            try:
                accepted = self._write(home, header, manifest, payload, records)
            except (FormatError, OSError):
                # What is in the files now, the files will say when the sender tries again.
                self._forget(header, home)
                raise
        return Taken(accepted, len(records) - accepted)

    def close(self) -> None:
        """End all files."""
        with self._lock:
            homes = list(self._homes.items())
        for header, home in homes:
            with home.lock:
                self._forget(header, home)

    def _write(
        self, home: _Home, header: FileHeader, manifest: Manifest | None, payload: Payload, records: list[Record]
    ) -> int:
        """How many records were new; all of them are durable, repeats too, when this returns."""
        if home.writer is None or not home.writer.directory.is_dir():
            home.writer = self._settle(home, header, manifest)
        else:
            self._tell(home.manifest_directory, header, manifest)
        self._keep_open(header, home)
        mask = home.seen.add(payload.batch.seq)
        fresh = [record for record, new in zip(records, mask.tolist(), strict=True) if new]
        if fresh:
            home.writer.write(fresh)
        home.writer.sync()
        return len(fresh)

    def _settle(self, home: _Home, header: FileHeader, manifest: Manifest | None) -> FileWriter:
        """Find or make the attempt's place, and what of it is there already."""
        with self._naming:
            run = run_directory(self._root, header, manifest)
            directory = rank_directory(run, header)
            directory.mkdir(parents=True, exist_ok=True)
            home.manifest_directory = manifest_directory(run, header)
            self._tell(home.manifest_directory, header, manifest)  # from here on it is ours
        home.seen = self._seen(directory, header.attempt)
        return FileWriter(directory, FORMATS["protobuf"], header, DEFAULT_MAX_FILE_SIZE_BYTES, file_system=self._system)

    def _tell(self, directory: Path, header: FileHeader, manifest: Manifest | None) -> None:
        """``run.json`` as the sender has it; without one, what the header says."""
        if manifest is None and read_manifest(directory) is not None:
            return
        attempt = Attempt(header.attempt, header.created, host=header.host, pid=header.pid)
        told = manifest or Manifest(header.run, rank=header.rank, world_size=header.world_size, attempts=(attempt,))
        note = f"{RECEIVED}{header.host}"
        write_manifest(directory, replace(told, notes=told.notes if note in told.notes else (*told.notes, note)))

    def _seen(self, directory: Path, attempt: int) -> IntervalSet:
        """What of the attempt is in the directory's files, made durable: whoever wrote it may have been killed before that."""
        seen = IntervalSet()
        problems: list[FileProblem] = []
        for path in sorted(directory.iterdir()):
            parsed = parse_file_name(path.name)
            if parsed and path.is_file() and not path.is_symlink() and path not in self._doubted:
                batch = read_file(path, parsed[1], directory, problems)
                mine = batch.seq[batch.attempt == attempt]
                if len(mine):
                    self._sync(path)
                    seen.add(mine)
        self._system.sync_directory(directory)
        return seen

    def _sync(self, path: Path) -> None:
        descriptor = open_regular(path)
        try:
            self._system.sync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _home(self, header: FileHeader) -> Iterator[_Home]:
        """The attempt's home, for this thread alone. Raises OSError when another request has it for too long."""
        while True:
            with self._lock:
                home = self._homes.setdefault(header, _Home())
                self._homes.move_to_end(header)
                spare = [
                    item for item in list(self._homes.items())[:-_MAX_HOMES] if item[1].lock.acquire(blocking=False)
                ]
            for old, unused in spare:
                self._forget(old, unused)
                unused.lock.release()
            if not home.lock.acquire(timeout=_BUSY_S):
                raise OSError(errno.EBUSY, "another request of this attempt is being written")
            try:
                if not home.gone:
                    yield home
                    return
            finally:
                home.lock.release()

    def _keep_open(self, header: FileHeader, home: _Home) -> None:
        """A descriptor each: the attempt that was idle longest ends its file, and begins a new one with its next record."""
        with self._lock:
            self._open[header] = home
            self._open.move_to_end(header)
            for old, idle in list(self._open.items())[: -self._max_open]:
                if idle.lock.acquire(blocking=False):
                    del self._open[old]
                    with contextlib.suppress(OSError):  # all that was acknowledged is durable already
                        if idle.writer is not None:
                            idle.writer.close()
                    idle.lock.release()

    def _forget(self, header: FileHeader, home: _Home) -> None:
        """Called with the home's lock held: the next request reads from the files what is there."""
        home.gone = True
        with self._lock:
            for table in (self._homes, self._open):
                if table.get(header) is home:
                    del table[header]
        if home.writer is not None:
            try:
                home.writer.close()
            except OSError:
                self._doubted.update(home.writer.files)

    def _records(self) -> Response:
        request.max_content_length = MAX_PUSH_BYTES
        if request.mimetype != CONTENT_TYPE or request.headers.get("Content-Encoding", "identity") != "identity":
            return _refuse(415, f"Content-Type {request.mimetype!r}: expected {CONTENT_TYPE}, without Content-Encoding")
        if not self._places.acquire(blocking=False):
            return _come_again(f"{_MAX_AT_ONCE} requests are being written already")
        try:
            return jsonify(self.take(decode_payload(request.get_data(cache=False)))._asdict())
        except FormatError as error:
            return _refuse(400, str(error))
        except OSError as error:
            return _come_again(f"not written: {error.strerror or error}")
        finally:
            self._places.release()


def register_refusal(server: Flask) -> None:
    """Without ``--receive`` a sender is told what is missing."""
    missing = "this dashboard only reads: start msmon-dash with --receive"
    server.add_url_rule("/api/records", "_no_records", lambda: _refuse(404, missing), methods=["POST"])


def _checked_records(payload: Payload) -> list[Record]:
    """The payload's records. Raises FormatError for any that could not be written, before anything is."""
    header, batch = payload.header, payload.batch
    if len(batch) and set(batch.attempt.tolist()) != {header.attempt}:
        raise FormatError(f"batch: records of another attempt than the header's {header.attempt}")
    records = list(batch.records())
    if records:
        FORMATS["protobuf"].encoder(header, records).encode(records, first=True)
    return records


def _checked(manifest: Mapping[str, Any]) -> Manifest:
    try:
        found = from_json(manifest)
        size = len(manifest_bytes(found))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest: {error}") from error
    if size > MAX_MANIFEST_BYTES // 2:  # room for what is added here
        raise FormatError(f"manifest: {size} bytes as run.json; expected at most {MAX_MANIFEST_BYTES // 2}")
    return found


def _files_to_spare() -> int:
    """Half of the descriptors that this process may have."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 128
    return max(16, min(2048, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


def _come_again(reason: str) -> Response:
    answer = _refuse(503, reason)
    answer.headers["Retry-After"] = str(_RETRY_AFTER_S)
    return answer


def _refuse(status: int, reason: str) -> Response:
    answer = jsonify({"error": reason[:250]})
    answer.status_code = status
    return answer
