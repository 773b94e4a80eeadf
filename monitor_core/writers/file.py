"""Records to numbered files: create, append, rotate, retain, and what to do when the disk says no.

A file is created with ``O_EXCL``, appended to by one process, and never renamed, truncated or reopened. Any error while writing ends
it: what was not acknowledged is encoded anew into the next file. Readers drop repeats by (attempt, seq), so a record that
reached the disk just before the error is still shown once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor_core.clock import Clock, SystemClock
from monitor_core.errors import WriteError
from monitor_core.formats import file_name, parse_file_name
from monitor_core.formats.base import Encoder, Format
from monitor_core.limits import MAX_FILE_NUMBER
from monitor_core.record import FileHeader, Record


class FileSystem:
    """The calls that can fail, in one place, so that fault tests can fail each of them."""

    def create(self, path: Path) -> int:
        """A new file for writing; raises FileExistsError when the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, flags, 0o644)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        """How many bytes were written; may be fewer than given."""
        return os.pwrite(descriptor, data, offset)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink()


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of the past a directory keeps. None: no such bound. Whole closed files only, oldest first."""

    max_files: int | None = None
    max_total_bytes: int | None = None
    max_age_s: float | None = None


@dataclass(slots=True)
class _Open:
    """The file being appended to."""

    path: Path
    descriptor: int
    encoder: Encoder
    size: int
    filled: bool = False
    """Holds at least one record."""


class FileWriter:
    """Writes one format into one directory, for one rank and attempt. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        directory: Path,
        format_: Format,
        header: FileHeader,
        max_file_size: int,
        retention: Retention | None = None,
        *,
        file_system: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Touches nothing yet; the first ``write`` creates the first file.

        ``max_file_size`` in bytes: a batch that would cross it goes to the next file; only a single record that is larger than
        a whole file makes one that exceeds it.
        """
        self.directory = directory
        self.format = format_
        self.files: list[Path] = []
        """Files this writer created, oldest first, those that retention removed left out."""
        self.unsynced = False
        """Something was written since the last successful fsync."""
        self._header = header
        self._max_file_size = max_file_size
        self._retention = retention
        self._system = file_system or FileSystem()
        self._clock = clock or SystemClock()
        self._open: _Open | None = None
        self._number = 0

    def write(self, records: Sequence[Record]) -> int:
        """Append all of ``records``; returns the last one's ``seq``.

        Raises WriteError when the disk refuses; its ``acknowledged`` says how many of ``records``, from the first on, are
        in the file, and its file is ended.
        """
        done = 0
        while done < len(records):
            part = records[done:]
            try:
                done += self._write_some(part)
            except OSError as error:
                name = self._open.path if self._open else self.directory
                self._abandon()
                raise _write_error(error, name, done) from error
        return records[-1].seq

    def sync(self) -> None:
        """Make everything written so far survive a power loss. Raises WriteError."""
        if not self.unsynced or self._open is None:
            return
        try:
            self._system.sync(self._open.descriptor)
            self._system.sync_directory(self.directory)
        except OSError as error:
            name = self._open.path
            self._abandon()
            raise _write_error(error, name, 0) from error
        self.unsynced = False

    def close(self) -> None:
        """End the open file durably. Raises WriteError when that fails; the writer is closed either way."""
        try:
            self.sync()
        finally:
            self._abandon()

    def _write_some(self, records: Sequence[Record]) -> int:
        """Write as many of ``records`` as fit the open file, or else a new one; at least one."""
        if self._open is not None and not self._open.encoder.accepts(records[:1]):
            self._end()
        current = self._open or self._create(records)
        while not current.encoder.accepts(records):
            records = records[: max(1, len(records) // 2)]
        data = current.encoder.encode(records, first=not current.filled)
        while self._too_big(current, data) and (current.filled or len(records) > 1):
            if current.filled:
                self._end()
                current = self._create(records)
            else:
                records = records[: len(records) // 2]
            data = current.encoder.encode(records, first=True)
        self._append(current, data)
        return len(records)

    def _too_big(self, current: _Open, data: bytes) -> bool:
        return current.size - current.encoder.overlap + len(data) > self._max_file_size

    def _append(self, current: _Open, data: bytes) -> None:
        offset = current.size - current.encoder.overlap
        self._put(current.descriptor, data, offset)
        current.size = offset + len(data)
        current.filled = True
        self.unsynced = True

    def _put(self, descriptor: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = self._system.write_at(descriptor, bytes(view), offset)
            if written <= 0:
                raise OSError(f"pwrite wrote {written} of {len(view)} bytes")
            view, offset = view[written:], offset + written

    def _create(self, records: Sequence[Record]) -> _Open:
        encoder = self.format.encoder(self._header, records)
        path, descriptor = self._claim()
        head = encoder.begin()
        self._open = _Open(path, descriptor, encoder, len(head))
        self._put(descriptor, head, 0)
        self.files.append(path)
        self._retain()
        return self._open

    def _claim(self) -> tuple[Path, int]:
        """The next free number; other writers in the directory take numbers too."""
        number = self._number or self._highest()
        while number < MAX_FILE_NUMBER:
            number += 1
            path = self.directory / file_name(number, self.format)
            try:
                descriptor = self._system.create(path)
            except FileExistsError:
                continue
            self._number = number
            return path, descriptor
        raise OSError(f"{self.directory}: all file numbers up to {MAX_FILE_NUMBER} are taken")

    def _highest(self) -> int:
        found = [parse_file_name(path.name) for path in self.directory.iterdir()]
        return max((item[0] for item in found if item and item[1] is self.format), default=0)

    def _end(self) -> None:
        """Close the open file, which is full; its bytes are synced first so that a later fsync need not reach back."""
        if self._open is not None:
            self._system.sync(self._open.descriptor)
            self._abandon()

    def _abandon(self) -> None:
        current, self._open = self._open, None
        if current is not None:
            with contextlib.suppress(OSError):  # nothing more is written to it, and its error was raised by the write
                self._system.close(current.descriptor)

    def _retain(self) -> None:
        if self._retention is None:
            return
        closed = [path for path in self._all_files() if self._open is None or path != self._open.path]
        for path in _expendable(closed, self._retention, self._clock.wall()):
            with contextlib.suppress(OSError):  # gone already, or to be tried again at the next rotation
                self._system.remove(path)
            self.files = [kept for kept in self.files if kept != path]

    def _all_files(self) -> list[Path]:
        named = ((parse_file_name(path.name), path) for path in self.directory.iterdir())
        return [
            path for _, path in sorted((found[0], path) for found, path in named if found and found[1] is self.format)
        ]


def _expendable(closed: Sequence[Path], retention: Retention, now: float) -> list[Path]:
    """Which of the closed files, oldest first, must go."""
    facts = []
    for path in closed:
        with contextlib.suppress(OSError):
            status = path.stat()
            facts.append((path, status.st_size, status.st_mtime))
    gone: list[Path] = []
    total = sum(size for _, size, _ in facts)
    for number, (path, size, changed) in enumerate(facts):
        too_many = retention.max_files is not None and len(facts) - number + 1 > retention.max_files
        too_big = retention.max_total_bytes is not None and total > retention.max_total_bytes
        too_old = retention.max_age_s is not None and now - changed > retention.max_age_s
        if not (too_many or too_big or too_old):
            break
        gone.append(path)
        total -= size
    return gone


def _write_error(error: OSError, path: Path, done: int) -> WriteError:
    message = (
        f"{path}: writing failed: {error.strerror or error}; {done} records of this batch are written, the others are kept "
        "and tried again in the next file: free disk space or make the directory writable"
    )
    raised = WriteError(error.errno, message)
    raised.acknowledged = done
    return raised
