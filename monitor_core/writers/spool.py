"""Records that wait for an endpoint, bounded in number and in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from monitor_core.record import Record

_RECORD_BYTES = 300  # the tuple, its numbers and an empty dict, measured with sys.getsizeof on CPython 3.11
_SCALAR_BYTES = 64  # one dict entry and its float, in the same way
_VALUE_BYTES = 64  # any value inside nested ones; text counts its length besides


class Spool:
    """A queue; beyond either bound the oldest records go. Not thread-safe: its owner holds a lock."""

    def __init__(self, records: int, size_bytes: int) -> None:
        """At most so many records, of about so many bytes of Python objects together."""
        self.capacity = records
        self._most_bytes = size_bytes
        self._waiting: deque[tuple[Record, int]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, records: Sequence[Record]) -> int:
        """Append; returns how many of the oldest had to go."""
        dropped = 0
        for record in records:
            size = memory_bytes(record)
            self._waiting.append((record, size))
            self._bytes += size
            while len(self._waiting) > self.capacity or self._bytes > self._most_bytes:
                self._bytes -= self._waiting.popleft()[1]
                dropped += 1
        return dropped

    def take(self, records: int, size_bytes: int) -> list[Record]:
        """The oldest, at least one where there is one, up to either bound."""
        taken: list[Record] = []
        left = size_bytes
        while self._waiting and len(taken) < records and (not taken or self._waiting[0][1] <= left):
            record, size = self._waiting.popleft()
            self._bytes -= size
            left -= size
            taken.append(record)
        return taken

    def restore(self, records: Sequence[Record]) -> int:
        """Put taken records back in front as far as there is room, the newest of them first; returns how many had to go."""
        for place in range(len(records), 0, -1):
            size = memory_bytes(records[place - 1])
            if len(self._waiting) >= self.capacity or self._bytes + size > self._most_bytes:
                return place
            self._waiting.appendleft((records[place - 1], size))
            self._bytes += size
        return 0

    def clear(self) -> int:
        """Drop all; returns how many."""
        dropped = len(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return dropped


def memory_bytes(record: Record) -> int:
    """About how much memory a record holds, rather too much than too little: values shared with others count in full."""
    total = _RECORD_BYTES + _SCALAR_BYTES * len(record.scalars)
    waiting: list[object] = [record.nested] if record.nested else []
    while waiting:
        value = waiting.pop()
        total += _VALUE_BYTES
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            total += sum(len(str(key)) for key in value)
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return total
