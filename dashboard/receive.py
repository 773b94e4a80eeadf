"""``msmon-dash --receive``: takes what Monitors push (``http_endpoint``) and writes ordinary run directories. The only part that writes.

Each record is identified by (run, rank, attempt, seq) and written once, however often it is sent; an answer of 200 means that it is on
the disk. Which records are there already is read from the files themselves, so a restart forgets nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from flask import Flask, Response, jsonify, request

from dashboard.store.intervals import IntervalSet
from monitor_core.errors import FormatError
from monitor_core.formats import FORMATS, parse_file_name
from monitor_core.formats.payload import CONTENT_TYPE, Payload, decode_payload
from monitor_core.limits import DEFAULT_MAX_FILE_SIZE_BYTES, MAX_PUSH_BYTES
from monitor_core.logs import FileProblem, read_file
from monitor_core.manifest import Attempt, Manifest, from_json
from monitor_core.record import FileHeader
from monitor_core.writers.file import FileWriter
from monitor_core.writers.run_files import read_manifest, write_manifest

_MAX_NAME_CHARS = 80
_MAX_OPEN = 64  # writers kept open, each with a file descriptor; the least used one is closed
_RETRY_AFTER_S = 5  # said to senders when the disk refuses
_SAME_START_S = 1e-3  # two starts nearer than this are one: times travel through JSON


class Taken(NamedTuple):
    """What became of a payload's records."""

    accepted: int
    duplicate: int


@dataclass(slots=True)
class _Home:
    """One rank's attempt on this disk."""

    directory: Path
    """Where its files go."""
    manifest_directory: Path
    writer: FileWriter
    seen: IntervalSet
    """``seq`` of the attempt's records that are in the files."""


class Receiver:
    """Writes below one log directory; any thread may call ``take``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._homes: OrderedDict[FileHeader, _Home] = OrderedDict()

    def register(self, server: Flask) -> None:
        """Add the route."""
        server.add_url_rule("/api/records", view_func=self._records, methods=["POST"])

    def take(self, payload: Payload) -> Taken:
        """Write what is new. Raises FormatError for a payload that contradicts itself, and OSError when the disk refuses."""
        header, batch = payload.header, payload.batch
        if len(batch) and set(batch.attempt.tolist()) != {header.attempt}:
            raise FormatError(f"batch: records of another attempt than the header's {header.attempt}")
        manifest = None if payload.manifest is None else _checked(payload.manifest)
        with self._lock:
            home = self._home(header, manifest)
            try:
                accepted = self._write(home, payload, manifest)
            except (FormatError, OSError):
                # What is in the files now, the files will say when the sender tries again.
                self._homes.pop(header, None)
                with contextlib.suppress(OSError):
                    home.writer.close()
                raise
        return Taken(accepted, len(batch) - accepted)

    def _write(self, home: _Home, payload: Payload, manifest: Manifest | None) -> int:
        """How many records were new; all of them are durable, repeats too, when this returns."""
        self._tell(home, payload.header, manifest)
        fresh = payload.batch.take(home.seen.add(payload.batch.seq))
        if len(fresh):
            home.writer.write(list(fresh.records()))
        home.writer.sync()
        return len(fresh)

    def close(self) -> None:
        """End all files."""
        with self._lock:
            while self._homes:
                self._homes.popitem()[1].writer.close()

    def _records(self) -> Response:
        request.max_content_length = MAX_PUSH_BYTES
        if request.mimetype != CONTENT_TYPE:
            return _refuse(415, f"Content-Type {request.mimetype!r}: expected {CONTENT_TYPE}")
        try:
            return jsonify(self.take(decode_payload(request.get_data(cache=False)))._asdict())
        except FormatError as error:
            return _refuse(400, str(error))
        except OSError as error:
            answer = _refuse(503, f"not written: {error.strerror or error}")
            answer.headers["Retry-After"] = str(_RETRY_AFTER_S)
            return answer

    def _home(self, header: FileHeader, manifest: Manifest | None) -> _Home:
        """The attempt's place, made when it is new."""
        home = self._homes.get(header)
        if home is None or not home.directory.is_dir():
            run = self._run_directory(header, manifest)
            directory = run / f"rank_{header.rank}" if header.world_size > 1 else run
            directory.mkdir(parents=True, exist_ok=True)
            writer = FileWriter(directory, FORMATS["protobuf"], header, DEFAULT_MAX_FILE_SIZE_BYTES)
            home = _Home(directory, run if header.rank == 0 else directory, writer, _seen(directory, header.attempt))
            self._homes[header] = home
        self._homes.move_to_end(header)
        while len(self._homes) > _MAX_OPEN:
            self._homes.popitem(last=False)[1].writer.close()
        return home

    def _run_directory(self, header: FileHeader, manifest: Manifest | None) -> Path:
        """By the run's name; another run of the same name that is there already gets the next free number.

        A training in a fresh directory begins with attempt 1 and seq 0 again: by its number alone it would be taken for a repeat of the
        other one. So the times at which both started their attempts are compared.
        """
        starts = {known.attempt: known.started for known in (manifest.attempts if manifest else ())}
        starts[header.attempt] = header.created
        name, number = safe_name(header.run), 1
        while True:
            run = self._root / (name if number == 1 else f"{name}-{number}")
            inside = run / f"rank_{header.rank}" if header.rank else run
            past = read_manifest(inside)
            if past is None or _same_run(past, starts):
                return run
            number += 1

    def _tell(self, home: _Home, header: FileHeader, manifest: Manifest | None) -> None:
        """``run.json`` as the sender has it; without one, what the header says."""
        if manifest is None and read_manifest(home.manifest_directory) is not None:
            return
        attempt = Attempt(header.attempt, header.created, host=header.host, pid=header.pid)
        told = manifest or Manifest(header.run, rank=header.rank, world_size=header.world_size, attempts=(attempt,))
        note = f"received over HTTP from {header.host}"
        notes = told.notes if note in told.notes else (*told.notes, note)
        write_manifest(home.manifest_directory, replace(told, notes=notes))


def safe_name(name: str) -> str:
    """A folder name for any run name: letters, digits, ``_ - .`` and spaces stay; a changed name gets a checksum, so that two stay two."""
    kept = re.sub(r"[^\w\-. ]", "_", name)[:_MAX_NAME_CHARS].strip(". ")
    if kept == name != "":
        return kept
    checksum = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{kept or 'run'}-{checksum}"


def _checked(manifest: Mapping[str, Any]) -> Manifest:
    try:
        return from_json(manifest)
    except ValueError as error:
        raise FormatError(f"manifest: {error}") from error


def _same_run(past: Manifest, starts: Mapping[int, float]) -> bool:
    return all(abs(starts.get(known.attempt, known.started) - known.started) < _SAME_START_S for known in past.attempts)


def _seen(directory: Path, attempt: int) -> IntervalSet:
    """What of the attempt is in the directory's files."""
    seen = IntervalSet()
    problems: list[FileProblem] = []
    for path in sorted(directory.iterdir()):
        parsed = parse_file_name(path.name)
        if parsed and path.is_file():
            batch = read_file(path, parsed[1], directory, problems)
            seen.add(batch.seq[batch.attempt == attempt])
    return seen


def _refuse(status: int, reason: str) -> Response:
    return Response(f"{reason}\n", status, mimetype="text/plain")
