"""What bins of rows hold, at several widths, kept up while rows arrive: a window then costs the same however long the run is.

An entry sums up some consecutive rows of one stretch that lie in one aligned bin of steps. There is one track of entries for finite
values and one for each of NaN, +infinity and -infinity, so that where these stand is found without looking at every row. The next
level of a track merges its entries into bins ``2 ** LEVEL_BITS`` times as wide. Rows not summed up yet are read as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor_core.batch import Column, Floats, Ints

ENTRY = np.dtype(
    [
        ("first_row", np.int64), ("last_row", np.int64), ("first_step", np.int64), ("last_step", np.int64),
        ("count", np.int64), ("min", np.float64), ("max", np.float64), ("first", np.float64), ("last", np.float64),
        ("mean", np.float64),
    ]
)  # fmt: skip
Entries = NDArray[Any]
"""Shape ``(n,)``, of ``ENTRY``, in order of rows."""
NO_ENTRIES: Entries = np.empty(0, ENTRY)
#: What the tracks after the first one, the finite values, list.
KINDS = (np.nan, np.inf, -np.inf)
TRACKS = 1 + len(KINDS)

LEAST_FOLD = 1 << 14  # rows: fewer are left as they are, so that a small append costs nothing here
LEAST_CLOSED = 1 << 11  # rows of a stretch that has ended and is worth entries
BIN_ROWS = 100  # on average in an entry of the lowest level, at least when its width is chosen
LEVEL_BITS = 3
_PROMOTE = 512  # entries that wait before they are merged into the next level
_FIRST = np.zeros(1, np.intp)


class Level(NamedTuple):
    """One level at one moment."""

    entries: Entries
    cover: int
    """Rows below this one are in it."""


def entries_of(step: Ints, column: Column, start: int, shift: int) -> tuple[Entries, ...]:
    """Entries of each track for the rows from ``start`` on, in bins of ``2 ** shift`` steps."""
    values, present = column.values, column.present
    finite = np.isfinite(values)
    if finite.all():  # absent values are NaN
        return _reduced(step, values, None, start, shift), NO_ENTRIES, NO_ENTRIES, NO_ENTRIES
    bad = ~finite if present is None else ~finite & present
    finite = finite if present is None else finite & present
    found = [_reduced(step, values, np.flatnonzero(finite), start, shift)]
    rows = np.flatnonzero(bad)
    kind = np.where(np.isnan(values[rows]), 0, np.where(values[rows] > 0, 1, 2))
    found += [_reduced(step, values, rows[kind == number], start, shift) for number in range(len(KINDS))]
    return tuple(found)


def merged(entries: Entries, shift: int) -> Entries:
    """Entries of the same bin of ``2 ** shift`` steps put together. Means are weighed by count, so that no sum overflows."""
    begins = _begins(entries["first_step"] >> shift)
    if len(begins) == len(entries):
        return entries
    ends = np.append(begins[1:], len(entries)) - 1
    found = np.empty(len(begins), ENTRY)
    for name in ("first_row", "first_step", "first"):
        found[name] = entries[name][begins]
    for name in ("last_row", "last_step", "last"):
        found[name] = entries[name][ends]
    found["count"] = np.add.reduceat(entries["count"], begins)
    found["min"] = np.minimum.reduceat(entries["min"], begins)
    found["max"] = np.maximum.reduceat(entries["max"], begins)
    share = entries["count"] / np.repeat(found["count"], ends - begins + 1)
    with np.errstate(over="ignore", invalid="ignore"):  # of NaN and infinities the mean means nothing
        means = np.add.reduceat(entries["mean"] * share, begins)
        found["mean"] = np.clip(means, found["min"], found["max"])
    return found


class Track:
    """Levels of entries that grow at the end."""

    def __init__(self) -> None:
        self._blocks: list[Entries] = []
        self._counts: list[int] = []
        self._promoted: list[int] = []
        self._covers: list[int] = []

    def append(self, entries: Entries, shift: int, cover: int) -> None:
        """Entries of the rows up to ``cover``, of width ``2 ** shift`` at most."""
        level = 0
        while True:
            self._put(level, entries, cover)
            if self._counts[level] - self._promoted[level] < _PROMOTE:
                return
            entries = self._blocks[level][self._promoted[level] : self._counts[level]]
            self._promoted[level] = self._counts[level]
            cover = int(entries["last_row"][-1]) + 1
            level += 1
            entries = merged(entries, min(63, shift + LEVEL_BITS * level))

    def levels(self) -> tuple[Level, ...]:
        """All levels as they are now, the lowest first; they stay valid."""
        found = zip(self._blocks, self._counts, self._covers, strict=True)
        return tuple(Level(block[:count], cover) for block, count, cover in found)

    @property
    def memory_bytes(self) -> int:
        """What the levels take, with slack."""
        return sum(block.nbytes for block in list(self._blocks))

    def _put(self, level: int, entries: Entries, cover: int) -> None:
        if level == len(self._blocks):
            self._blocks.append(NO_ENTRIES)
            self._counts.append(0)
            self._promoted.append(0)
            self._covers.append(0)
        block, count = self._blocks[level], self._counts[level]
        stop = count + len(entries)
        if stop > len(block):
            grown = np.empty(max(stop, len(block) + len(block) // 4), ENTRY)
            grown[:count] = block[:count]
            block = self._blocks[level] = grown
        block[count:stop] = entries
        self._counts[level] = stop
        self._covers[level] = cover


class FoldView(NamedTuple):
    """The entries of one stretch at one moment."""

    folded: int
    """Rows of the stretch below this one are in the entries."""
    tracks: dict[str, tuple[tuple[Level, ...], ...]]
    """Metric to its tracks' levels; a metric without any value below ``folded`` is not there."""


class Fold:
    """The entries of one stretch while it grows."""

    def __init__(self, start: int) -> None:
        self.folded = start
        self._shift = -1
        self._tracks: dict[str, list[Track]] = {}
        self._view: FoldView | None = None

    def fold(self, step: Ints, columns: dict[str, Column]) -> None:
        """Take the next rows."""
        self._choose_width(step)
        stop = self.folded + len(step)
        for name, column in columns.items():
            for number, entries in enumerate(entries_of(step, column, self.folded, self._shift)):
                if len(entries):
                    tracks = self._tracks.setdefault(name, [Track() for _ in range(TRACKS)])
                    tracks[number].append(entries, self._shift, stop)
        self.folded = stop
        self._view = None

    def view(self) -> FoldView:
        """The entries as they are now."""
        if self._view is None:
            tracks = {name: tuple(track.levels() for track in tracks) for name, tracks in self._tracks.items()}
            self._view = FoldView(self.folded, tracks)
        return self._view

    @property
    def memory_bytes(self) -> int:
        """What the entries take."""
        return sum(track.memory_bytes for tracks in list(self._tracks.values()) for track in tracks)

    def _choose_width(self, step: Ints) -> None:
        """Keep the width while it suits: a run may log more or less often from some step on."""
        span = int(step[-1]) - int(step[0]) + 1
        if self._shift >= 0 and BIN_ROWS // 2 <= (len(step) << self._shift) / span < 5 * BIN_ROWS:
            return
        self._shift = min(63, max(0, -(-span * BIN_ROWS // len(step)) - 1).bit_length())


def _begins(place: Ints) -> NDArray[np.intp]:
    if not len(place):
        return np.empty(0, np.intp)
    return np.concatenate((_FIRST, np.flatnonzero(place[1:] != place[:-1]) + 1))


def _reduced(step: Ints, values: Floats, rows: Ints | None, start: int, shift: int) -> Entries:
    if rows is not None:
        if not len(rows):
            return NO_ENTRIES
        step, values = step[rows], values[rows]
    begins = _begins(step >> shift)
    if not len(begins):
        return NO_ENTRIES
    ends = np.append(begins[1:], len(step)) - 1
    found = np.empty(len(begins), ENTRY)
    found["first_row"] = start + (begins if rows is None else rows[begins])
    found["last_row"] = start + (ends if rows is None else rows[ends])
    found["first_step"], found["last_step"] = step[begins], step[ends]
    found["count"] = ends - begins + 1
    found["min"], found["max"] = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
    found["first"], found["last"] = values[begins], values[ends]
    found["mean"] = _means(values, begins, found["count"])
    return found


def _means(values: Floats, begins: NDArray[np.intp], count: Ints) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        means: Floats = np.add.reduceat(values, begins) / count
        if not np.isfinite(means).all():  # the sum of a bin is beyond the largest float: divide first
            means = np.add.reduceat(values / np.repeat(count, count), begins)
    return means
