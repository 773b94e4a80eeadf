"""What a file format is: an encoder for one file and a pure decoder for growing bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from monitor_core.batch import Batch
from monitor_core.record import FileHeader, Record

ProblemKind = Literal["truncated", "corrupt", "too_large", "unreadable", "shrunk", "replaced"]


class Problem(NamedTuple):
    """A report on bad bytes. It costs only itself: reading goes on behind it."""

    kind: ProblemKind
    """``truncated``: cut short (ordinary while a file is open); ``corrupt``: wrong bytes."""
    offset: int
    """First bad byte in the file."""
    length: int
    """How many bytes were passed over; 0 when unknown."""
    reason: str
    """What was expected and what was found."""


class Decoded(NamedTuple):
    """What ``decode`` gives: the next state, the whole records found, the bad bytes passed over."""

    state: Any
    batch: Batch
    problems: tuple[Problem, ...]


class Encoder(Protocol):
    """Turns records into the bytes of one file; holds no file."""

    overlap: int
    """How many bytes at the end of the file the next append replaces (JSON's closing ``\\n]``)."""

    def begin(self) -> bytes:
        """The first bytes of a new file."""
        ...

    def accepts(self, records: Sequence[Record]) -> bool:
        """False when these records need a new file (CSV: a metric without a column)."""
        ...

    def encode(self, records: Sequence[Record], *, first: bool) -> bytes:
        """Bytes to write at (size of file - ``overlap``); ``first``: the file holds no record yet.

        ``records`` is never empty. Encoding changes no state, so it may be tried and thrown away.
        """
        ...


class Format(Protocol):
    """One file format. ``decode`` is pure: (state, bytes) -> (state, batch, problems).

    A state is a frozen value with an ``offset``: the file position up to which bytes are consumed.
    The caller passes the bytes from exactly that position on; what ``decode`` leaves unconsumed
    (an unfinished record) is passed again, longer, the next time. ``final=True`` says that the
    file will not grow any more: an unfinished record is then a ``truncated`` problem.
    Splitting the bytes anywhere never changes the records found.
    """

    name: str
    suffix: str
    """File name ending with its dot."""

    def encoder(self, header: FileHeader, first: Sequence[Record]) -> Encoder:
        """An encoder for a new file whose first records are ``first``."""
        ...

    def start(self) -> Any:
        """The state before a file's first byte."""
        ...

    def decode(self, state: Any, data: bytes, *, final: bool = False) -> Decoded:
        """Take every whole record out of ``data``."""
        ...
