"""One output of the recorder: a writer and what it still has to write."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from monitor_core.clock import Clock
from monitor_core.config import MonitorConfig
from monitor_core.errors import FormatError, WriteError
from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileSystem, FileWriter, Retention

_log = logging.getLogger("msmon")


class Sink:
    """Keeps the records of one batch until they are written."""

    def __init__(self, writer: FileWriter) -> None:
        self.writer = writer
        self.pending: Sequence[Record] = ()
        self.last_seq = -1
        """Newest ``seq`` that is in the files."""
        self.rejected = 0
        """Records that the format cannot hold; each is a counted loss."""

    def write(self) -> None:
        """Write what is pending. Raises WriteError; what is not acknowledged stays pending."""
        if not self.pending:
            return
        try:
            self._write(self.pending)
            self.pending = ()
        except FormatError:
            self._write_one_by_one()

    def _write(self, records: Sequence[Record]) -> None:
        try:
            self.last_seq = self.writer.write(records)
        except (FormatError, WriteError) as error:
            if error.acknowledged:
                self.last_seq = records[error.acknowledged - 1].seq
                self.pending = records[error.acknowledged :]
            raise

    def _write_one_by_one(self) -> None:
        """A record that cannot be encoded costs only itself."""
        while self.pending:
            first, rest = self.pending[0], self.pending[1:]
            try:
                self._write([first])  # raises WriteError with everything from here on still pending
            except FormatError as error:
                self.rejected += 1
                if self.rejected == 1:
                    _log.error("a record was refused and is counted as dropped: %s", error)
            self.pending = rest


def make_sinks(
    config: MonitorConfig, directory: Path, header: FileHeader, file_system: FileSystem | None, clock: Clock
) -> list[Sink]:
    """One per format of the configuration."""
    retention = None if config.retention is None else Retention(**config.retention)  # type: ignore[arg-type]
    return [
        Sink(
            FileWriter(directory, FORMATS[name], header, config.max_file_size, retention, file_system=file_system, clock=clock)
        )
        for name in config.export_format
    ]  # fmt: skip
