"""What a store promises; the page, the overlays and the report know only this.

Append a batch; ask a snapshot for the window of run x metric x step range x columns as
min, max, first, last, mean and count per column. A snapshot never changes while others append.
A second implementation on a distributed engine can stand behind the same two Protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from monitor_core.batch import Batch, Column

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


#: Gaps named per series: a file that lost every second record must not cost a list of them all at each change.
MAX_GAPS = 100


class SeriesKey(NamedTuple):
    """One writer's records: a run and one of its ranks."""

    run: str
    """Path of the run's directory relative to the log directory, ``.`` for the directory itself."""
    rank: int


class Appended(NamedTuple):
    """What became of a batch."""

    accepted: int
    duplicates: int
    """Rows whose (attempt, seq) was there already; they change nothing."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a series holds, kept up incrementally so that asking costs nothing."""

    rows: int
    first_step: int
    last_step: int
    first_timestamp: float
    last_timestamp: float
    """UTC seconds of the newest record in (attempt, seq) order."""
    attempts: tuple[int, ...]
    metrics: tuple[str, ...]
    """In order of first appearance."""
    last: Mapping[str, float]
    """Newest value of each metric in (attempt, seq) order; NaN and infinities included."""
    missing: int
    """Records that gaps in ``seq`` show to be lost or not yet read, and those at the end of an attempt that never came."""


class Gap(NamedTuple):
    """Consecutive records that are lost or not yet read."""

    attempt: int
    first_seq: int
    last_seq: int
    """Inclusive."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One uninterrupted stretch of steps: an attempt, or what follows a step that went back.

    All arrays have shape ``(bins,)``, ordered by step, one entry per non-empty bin. Bins are aligned:
    bin ``b`` covers steps ``[b * width, (b + 1) * width)``, so an old bin never changes its bounds.
    Non-finite values are in no min, max, first, last or mean: they are listed on their own. In a delta a segment
    without anything new is there with empty arrays, so that segments keep their places.
    A bin with only non-finite values has ``count`` 0 and is left out.
    """

    attempt: int
    superseded_from: int | None
    """First step that a later segment wrote again: from there on this one is a ghost. None: nowhere."""
    first_step: Ints
    """First step with a finite value in the bin."""
    last_step: Ints
    min: Floats
    max: Floats
    first: Floats
    last: Floats
    mean: Floats
    count: Ints
    """Finite values in the bin."""
    nonfinite_step: Ints
    """First step in each bin with NaN, with +infinity and with -infinity, ordered by step, shape ``(m,)``."""
    nonfinite_value: Floats
    """Which of the three it is, shape ``(m,)``."""


@dataclass(frozen=True, slots=True)
class Window:
    """The answer to a ``WindowQuery``."""

    width_steps: int
    """Width of a bin: a power of two, the smallest that keeps the window within ``columns`` bins."""
    rows: int
    """Rows of the series at the time; pass it as ``since_rows`` to get only what came later."""
    layout: int
    """Changes when segments were cut anew (late files); then a delta cannot be applied."""
    points: int
    """Finite and non-finite values of the metric inside the window, before binning; the whole window also for a delta."""
    nonfinite: int
    """How many of them are NaN or infinite."""
    segments: tuple[Segment, ...] = field(default_factory=tuple)
    older_left_out: bool = False
    """Whether there are older stretches than these, counted in ``points`` but not given."""


@dataclass(frozen=True, slots=True)
class WindowQuery:
    """Which part of which curve, and how finely."""

    series: SeriesKey
    metric: str
    columns: int
    """Most bins wanted, at least 1; about the number of pixels."""
    first_step: int | None = None
    """Inclusive; None is the beginning."""
    last_step: int | None = None
    """Inclusive; None is the end, growing with the run."""
    since_rows: int = 0
    """Give only bins that rows from this one on touched (whole bins, not parts of them)."""


class Rows(NamedTuple):
    """Some rows of a series, for those who go through them one by one."""

    layout: int
    """As ``Window.layout``: when it differs from last time, row numbers mean other rows now."""
    step: list[int]
    columns: list[list[float | None]]
    """One list per metric asked for, None where a row lacks it."""


class ColumnRows(NamedTuple):
    """Some rows of a series as arrays, for those who go through them in bulk."""

    layout: int
    """As ``Window.layout``."""
    step: Ints
    """Shape ``(n,)``."""
    columns: list[Column | None]
    """One per metric asked for, each of shape ``(n,)``; None where the series has no such metric."""


class Memory(NamedTuple):
    """What a store takes, in bytes."""

    columns_bytes: int
    """Rows in memory, slack included."""
    pyramid_bytes: int
    """Bins of rows at several widths, in memory."""
    spilled_bytes: int
    """Rows in files of the cache directory."""


class Cache(Protocol):
    """Where a store over its memory budget puts what is rarely asked for."""

    def keep(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The same arrays, mapped from a file. Raises OSError when they cannot be kept there; then nothing has changed."""
        ...


class Snapshot(Protocol):
    """An immutable view of the store."""

    version: int
    """Grows with every change."""

    def series(self) -> tuple[SeriesKey, ...]:
        """All series, sorted."""
        ...

    def extent(self, key: SeriesKey) -> Extent:
        """Raises KeyError when there is no such series."""
        ...

    def gaps(self, key: SeriesKey) -> tuple[Gap, ...]:
        """Where the ``missing`` records of the extent are, in order; at most ``MAX_GAPS``, the newest ones."""
        ...

    def window(self, query: WindowQuery) -> Window:
        """Empty window when the metric or the range has no values; KeyError for no such series."""
        ...

    def column(self, key: SeriesKey, metric: str) -> tuple[Ints, Ints, Floats]:
        """``(attempt, step, value)`` of every present value in (attempt, seq) order, full resolution."""
        ...

    def rows(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> Rows:
        """Rows ``start`` to ``stop`` (exclusive) in (attempt, seq) order, several metrics side by side."""
        ...

    def columns(self, key: SeriesKey, start: int, stop: int, metrics: Sequence[str]) -> ColumnRows:
        """The same rows as arrays, which must not be written to; KeyError for no such series."""
        ...


class Store(Protocol):
    """Takes batches; one thread appends, any number read snapshots."""

    def append(self, key: SeriesKey, batch: Batch) -> Appended:
        """Take the rows that are new. Identity is (attempt, seq) within the series."""
        ...

    def expect(self, key: SeriesKey, attempt: int, count: int) -> None:
        """The writer says that it recorded ``count`` records: those of them that are not there are missing.

        Nothing when there is no such series or it has no record of that attempt: its files may have been removed on purpose.
        """
        ...

    def drop(self, run: str) -> None:
        """Forget a run whose directory is gone."""
        ...

    def snapshot(self) -> Snapshot:
        """The newest state."""
        ...

    def memory_bytes(self) -> Memory:
        """What it takes now."""
        ...

    @property
    def spill_state(self) -> str:
        """Why the memory budget cannot be held, in English; empty when there is nothing to say."""
        ...
