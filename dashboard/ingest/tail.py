"""Following one file: (state, bytes) -> (state, batch, problems). Pure.

The state's offset never passes an unfinished record. A file that shrank, or whose first bytes changed, is another file
under the same name: that is reported, and it is read from its beginning; records that were there before change nothing,
because their identity is (attempt, seq).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from monitor_core.batch import Batch
from monitor_core.formats.base import Format, Problem

FINGERPRINT_BYTES = 64  # covers a JSON record's first keys, a CSV header, a protobuf header with host and time


@dataclass(frozen=True, slots=True)
class TailState:
    """How far a file has been read."""

    format: Format
    decoder: Any
    """The format's own state."""
    head: bytes = b""
    """The first bytes that were consumed, at most FINGERPRINT_BYTES."""
    records: int = 0
    """Records found, repeats included."""

    @property
    def offset(self) -> int:
        """Bytes consumed."""
        return int(self.decoder.offset)


def start(format_: Format) -> TailState:
    """Before a file's first byte."""
    return TailState(format_, format_.start())


def check(state: TailState, size: int, head: bytes) -> tuple[TailState, tuple[Problem, ...]]:
    """Compare a file's size and first bytes with what was read before; begins anew when it is another file.

    Only consumed bytes are compared: the closing bytes of a JSON array are rewritten by every append.
    """
    if size < state.offset:
        problem = Problem(
            "shrunk", size, state.offset - size, "the file became shorter; reading it again from the beginning"
        )
    elif not head.startswith(state.head):
        problem = Problem("replaced", 0, 0, "the file's first bytes changed; reading it again from the beginning")
    else:
        return state, ()
    return start(state.format), (problem,)


def feed(state: TailState, data: bytes, *, final: bool = False) -> tuple[TailState, Batch, tuple[Problem, ...]]:
    """Decode ``data``, the file's bytes from ``state.offset`` on; ``final``: the file ends here for good."""
    decoder, batch, problems = state.format.decode(state.decoder, data, final=final)
    head = state.head
    if len(head) < FINGERPRINT_BYTES and len(head) == state.offset:
        # Out of the very bytes that were decoded: the file may have grown since anything else looked at it.
        head += data[: min(int(decoder.offset), FINGERPRINT_BYTES) - len(head)]
    return replace(state, decoder=decoder, head=head, records=state.records + len(batch)), batch, problems
