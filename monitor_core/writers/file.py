"""Records to numbered files: create, append, rotate, retain, and what to do when the disk says no.

A file is created with ``O_EXCL``, appended to by one process, and never renamed, truncated or reopened. Any error while
writing ends it: what was not acknowledged is encoded anew into the next file. Readers drop repeats by (attempt, seq),
so a record that reached the disk just before the error is still shown once.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monitor_core.clock import Clock, SystemClock
from monitor_core.errors import FormatError, WriteError
from monitor_core.formats import file_name, parse_file_name
from monitor_core.formats.base import Encoder, Format
from monitor_core.limits import MAX_FILE_NUMBER
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file_system import FileSystem as FileSystem
from monitor_core.writers.retention import Retention as Retention
from monitor_core.writers.retention import expendable


@dataclass(slots=True)
class _Open:
    """The file being appended to."""

    path: Path
    descriptor: int
    encoder: Encoder
    size: int
    """Bytes that are acknowledged; an append that fails may leave more behind them."""
    tail: bytes
    """The last ``encoder.overlap`` bytes, which the next append replaces."""
    filled: bool = False
    """Holds at least one acknowledged record."""
    unsynced: bool = False
    """Has acknowledged records that no fsync has covered."""


class FileWriter:
    """Writes one format into one directory, for one rank and attempt. Not thread-safe: one thread owns it.

    After a fork it belongs to the process that made it; in another one ``write`` and ``sync`` raise WriteError.
    """

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
        """Touches nothing yet; the first ``write`` creates the first file, and the directory where it is missing.

        ``max_file_size`` in bytes: a batch that would cross it goes to the next file; only a single record that is
        larger than a whole file makes one that exceeds it.
        """
        self.directory = directory
        self.format = format_
        self.files: list[Path] = []
        """Files this writer filled, oldest first, those that were removed since left out."""
        self._header = header
        self._max_file_size = max_file_size
        self._retention = retention
        self._system = file_system or FileSystem()
        self._clock = clock or SystemClock()
        self._open: _Open | None = None
        self._widest = Record(0, 0, 0, None, 0.0, {})
        self._number = 0
        self._new_names = False
        self._not_durable: Path | None = None
        self._process = os.getpid()

    def write(self, records: Sequence[Record]) -> int:
        """Append all of ``records``, at least one; returns the last one's ``seq``.

        Raises WriteError when the disk refuses (the file is ended then) and FormatError when the format cannot hold a
        record; their ``acknowledged`` says how many of ``records``, from the first on, are in the files.
        """
        self._check_process()
        done = 0
        try:
            if self._open is not None and self._system.is_deleted(self._open.descriptor):
                self._forget(self._open)
            while done < len(records):
                done += self._write_some(records[done:])
        except FormatError as error:
            error.acknowledged = done
            raise
        except OSError as error:
            path = self._open.path if self._open else self.directory
            self._end_broken()
            raise _write_error(error, path, done) from error
        return records[-1].seq

    def sync(self) -> None:
        """Make everything written so far survive a power loss.

        Raises WriteError when that failed, now or for an earlier file of this writer: an fsync that failed once may
        have lost bytes that a second one reports as safe.
        """
        self._check_process()
        path = self._open.path if self._open else self.directory
        try:
            self._sync_open()
            if self._new_names:
                self._system.sync_directory(self.directory)
                self._new_names = False
        except OSError as error:
            self._end_broken()
            raise _write_error(error, path, 0) from error
        if self._not_durable is not None:
            raise WriteError(
                errno.EIO,
                f"{self._not_durable}: records were written, but the disk failed to make them durable; they are readable "
                "now and may be lost with a power failure: check the disk",
            )

    def close(self) -> None:
        """End the open file durably. Raises WriteError when that fails; the writer is closed either way."""
        try:
            if os.getpid() == self._process:
                self.sync()
        finally:
            if self._open is not None:
                self._close(self._open)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise WriteError(
                errno.EPERM,
                f"{self.directory}: this process was forked and the files belong to process {self._process}: build a "
                "Monitor of its own here",
            )

    def _write_some(self, records: Sequence[Record]) -> int:
        """Write as many of ``records`` as fit the open file, or else a new one; at least one."""
        if self._open is not None and not self._open.encoder.accepts(records[:1]):
            self._rotate(self._open)
        current = self._open or self._create(records)
        while not current.encoder.accepts(records):
            records = records[: max(1, len(records) // 2)]
        data = current.encoder.encode(records, first=not current.filled)
        while self._too_big(current, data) and (current.filled or len(records) > 1):
            if current.filled:
                self._rotate(current)
                current = self._create(records)
            else:
                records = records[: len(records) // 2]
            data = current.encoder.encode(records, first=True)
        self._append(current, data, records)
        return len(records)

    def _too_big(self, current: _Open, data: bytes) -> bool:
        return current.size - current.encoder.overlap + len(data) > self._max_file_size

    def _append(self, current: _Open, data: bytes, records: Sequence[Record]) -> None:
        overlap = current.encoder.overlap
        offset = current.size - overlap
        self._put(current.descriptor, data, offset)
        current.size = offset + len(data)
        current.tail = data[len(data) - overlap :]
        if not current.filled:
            self.files.append(current.path)
        self._widest = self._wider(records)
        current.filled = current.unsynced = True

    def _wider(self, records: Sequence[Record]) -> Record:
        """A record with every metric written so far: a format with fixed columns needs no new file each time one of them comes back."""
        known = self._widest.scalars
        for record in records:
            if not record.scalars.keys() <= known.keys():
                known = {**known, **record.scalars}
        return self._widest._replace(scalars=known)

    def _put(self, descriptor: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            written = self._system.write_at(descriptor, bytes(view), offset)
            if written <= 0:
                raise OSError(errno.EIO, f"{written} of {len(view)} bytes were written")
            view, offset = view[written:], offset + written

    def _create(self, records: Sequence[Record]) -> _Open:
        encoder = self.format.encoder(self._header, [*records, self._widest])
        head = encoder.begin()
        if len(head) > self._max_file_size // 8:  # columns that may stay empty must not take the rows' room
            encoder = self.format.encoder(self._header, records)
            head = encoder.begin()
        self._system.make_directory(self.directory)
        path, descriptor = self._claim()
        self._open = _Open(path, descriptor, encoder, len(head), head[len(head) - encoder.overlap :])
        self._new_names = True
        self._put(descriptor, head, 0)
        with contextlib.suppress(OSError):  # too much of the past is no reason to lose the present
            self._retain(path)
        return self._open

    def _claim(self) -> tuple[Path, int]:
        """The next free number; other writers in the directory take numbers too."""
        number = self._number or max((number for number, _ in self._numbered()), default=0)
        while number < MAX_FILE_NUMBER:
            number += 1
            path = self.directory / file_name(number, self.format)
            with contextlib.suppress(FileExistsError):
                descriptor = self._system.create(path)
                self._number = number
                return path, descriptor
        raise OSError(errno.EEXIST, f"all file numbers up to {MAX_FILE_NUMBER} are taken")

    def _numbered(self) -> list[tuple[int, Path]]:
        """All files of this format in the directory, by number."""
        found = [(parse_file_name(name), self.directory / name) for name in self._system.names(self.directory)]
        return sorted((parsed[0], path) for parsed, path in found if parsed and parsed[1] is self.format)

    def _retain(self, open_path: Path) -> None:
        if self._retention is None:
            return
        closed = []
        for _, path in self._numbered():
            if path != open_path:
                with contextlib.suppress(FileNotFoundError):
                    closed.append((path, *self._system.status(path)))
        for path in expendable(closed, self._retention, self._clock.wall(), self._max_file_size):
            self._system.remove(path)
            self.files = [kept for kept in self.files if kept != path]

    def _sync_open(self) -> None:
        current = self._open
        if current is not None and current.unsynced:
            try:
                self._system.sync(current.descriptor)
            except OSError:
                self._not_durable = current.path
                raise
            current.unsynced = False

    def _rotate(self, current: _Open) -> None:
        """End the open file, which is full; it is synced first so that a later ``sync`` need not reach back."""
        self._sync_open()
        self._close(current)

    def _end_broken(self) -> None:
        """End the file that an error hit: leave it readable and its acknowledged records durable, if the disk lets us."""
        current = self._open
        if current is None:
            return
        if not current.filled:  # nobody was promised anything that is in it, and a full disk must not fill with names
            self._close(current)
            with contextlib.suppress(OSError):
                self._system.remove(current.path)
            return
        with contextlib.suppress(OSError):
            self._mend(current)
        with contextlib.suppress(OSError):
            if self._not_durable != current.path:
                self._sync_open()
        self._close(current)

    def _mend(self, current: _Open) -> None:
        """Put back the closing bytes that a failed append replaced, and blank what it left: ``json.load`` works again."""
        if current.tail:
            excess = self._system.size(current.descriptor) - current.size
            self._put(current.descriptor, current.tail + b" " * excess, current.size - len(current.tail))

    def _forget(self, current: _Open) -> None:
        """The open file was deleted by someone: go on in a new one."""
        self.files = [path for path in self.files if path != current.path]
        self._close(current)

    def _close(self, current: _Open) -> None:
        self._open = None
        with contextlib.suppress(OSError):  # nothing more is written to it; what matters was synced or is reported
            self._system.close(current.descriptor)


def _write_error(error: OSError, path: Path, done: int) -> WriteError:
    message = (
        f"{path}: writing failed: {error.strerror or error}; {done} records of this batch are written, the others are kept "
        "and tried again in the next file: free disk space or make the directory writable"
    )
    raised = WriteError(error.errno, message)
    raised.acknowledged = done
    return raised
