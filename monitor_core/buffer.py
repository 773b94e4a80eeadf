"""The bounded queue between the training thread and the flusher thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from monitor_core.record import Record


class BoundedBuffer:
    """At most ``capacity`` records wait; beyond that the oldest go, and are counted.

    ``put`` is on the training thread's path: two deque operations, which CPython makes atomic, and no lock. Several threads may
    put, one drains. A drop between two records shows as a gap in their ``seq``.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"buffer capacity: expected at least 1 record, got {capacity}")
        self.capacity = capacity
        self._records: deque[Record] = deque(maxlen=capacity)
        self._put = 0
        self._drained = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def dropped(self) -> int:
        """Records lost to the bound so far; exact whenever no ``put`` is under way."""
        return max(0, self._put - self._drained - len(self._records))

    def put(self, record: Record) -> None:
        """Append; when full, the oldest record is dropped by the deque's own bound."""
        self._records.append(record)
        self._put += 1

    def drain(self, most: int) -> list[Record]:
        """Take up to ``most`` records, oldest first."""
        taken: list[Record] = []
        records = self._records
        while len(taken) < most:
            try:
                taken.append(records.popleft())
            except IndexError:
                break
        self._drained += len(taken)
        return taken

    def restore(self, records: Sequence[Record]) -> None:
        """Put records that could not be written back in front, as far as there is room for them.

        The newest of them are kept, because they join on to what is buffered; the rest is counted as dropped.
        A ``put`` at the very same moment may push out the newest record instead of the oldest; it is counted all the same.
        """
        room = self.capacity - len(self._records)
        kept = records[len(records) - room :] if room < len(records) else records
        self._records.extendleft(reversed(kept))
        self._drained -= len(records)
