"""One output of the recorder: a writer and what it still has to write."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from monitor_core.errors import FormatError, WriteError
from monitor_core.record import Record
from monitor_core.writers.file import FileWriter

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
