"""Records moving together, as columns: what every decoder gives and the store takes.

``present`` and not NaN says that a metric is absent, because NaN is a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor_core.record import NO_NESTED, Record

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: Stands for "no epoch" in a column of integers; real epochs start at 1.
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Column:
    """One metric over the rows of a batch, shape ``(n,)``."""

    values: Floats
    """NaN where absent; look at ``present`` to tell that from a measured NaN."""
    present: Bools | None = None
    """Row has a value; None means that every row has one."""

    def mask(self) -> Bools:
        """``present`` as an array, shape ``(n,)``."""
        return np.ones(len(self.values), bool) if self.present is None else self.present

    def take(self, rows: Ints | Bools | slice) -> Column:
        """The same metric for some rows."""
        present = None if self.present is None else self.present[rows]
        return Column(self.values[rows], present)


@dataclass(frozen=True, slots=True)
class Batch:
    """``n`` records as columns, each of shape ``(n,)``, in the order they were decoded."""

    seq: Ints
    attempt: Ints
    step: Ints
    epoch: Ints
    """``NO_EPOCH`` where the record has none."""
    timestamp: Floats
    columns: Mapping[str, Column]
    nested: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    """Row number to that row's nested values; rows without any are left out."""

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, rows: Ints | Bools | slice) -> Batch:
        """The batch of the chosen rows, in the chosen order."""
        chosen = np.arange(len(self))[rows]
        nested = (
            {new: self.nested[old] for new, old in enumerate(chosen.tolist()) if old in self.nested}
            if self.nested
            else {}
        )
        return Batch(
            self.seq[rows],
            self.attempt[rows],
            self.step[rows],
            self.epoch[rows],
            self.timestamp[rows],
            {name: column.take(rows) for name, column in self.columns.items()},
            nested,
        )

    def records(self) -> Iterator[Record]:
        """The rows as records; for tests, tools and small batches (slow beside the columns)."""
        present = {name: column.mask() for name, column in self.columns.items()}
        for row in range(len(self)):
            epoch = int(self.epoch[row])
            yield Record(
                int(self.seq[row]),
                int(self.attempt[row]),
                int(self.step[row]),
                None if epoch == NO_EPOCH else epoch,
                float(self.timestamp[row]),
                {name: float(column.values[row]) for name, column in self.columns.items() if present[name][row]},
                self.nested.get(row, NO_NESTED),
            )


def empty_batch() -> Batch:
    """A batch of no records."""
    return from_records(())


def from_records(records: Sequence[Record]) -> Batch:
    """Columns of ``records``; a metric that only some rows have gets a ``present`` mask."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(record.scalars))
    return Batch(
        np.array([r.seq for r in records], np.int64),
        np.array([r.attempt for r in records], np.int64),
        np.array([r.step for r in records], np.int64),
        np.array([NO_EPOCH if r.epoch is None else r.epoch for r in records], np.int64),
        np.array([r.timestamp for r in records], np.float64),
        {name: _column(name, records) for name in names},
        {row: dict(r.nested) for row, r in enumerate(records) if r.nested},
    )


def _column(name: str, records: Sequence[Record]) -> Column:
    values = np.array([r.scalars.get(name, np.nan) for r in records], np.float64)
    present = np.array([name in r.scalars for r in records], bool)
    return Column(values, None if present.all() else present)


def concat(batches: Iterable[Batch]) -> Batch:
    """One batch of all rows in order; a metric missing from a part is absent in its rows."""
    parts = [batch for batch in batches if len(batch)]
    if not parts:
        return empty_batch()
    if len(parts) == 1:
        return parts[0]
    names: dict[str, None] = {}
    nested: dict[int, Mapping[str, object]] = {}
    start = 0
    for part in parts:
        names.update(dict.fromkeys(part.columns))
        nested.update({start + row: value for row, value in part.nested.items()})
        start += len(part)
    return Batch(
        np.concatenate([p.seq for p in parts]),
        np.concatenate([p.attempt for p in parts]),
        np.concatenate([p.step for p in parts]),
        np.concatenate([p.epoch for p in parts]),
        np.concatenate([p.timestamp for p in parts]),
        {name: _concat_column(name, parts) for name in names},
        nested,
    )


def _concat_column(name: str, parts: Sequence[Batch]) -> Column:
    values, present = [], []
    for part in parts:
        column = part.columns.get(name)
        if column is None:
            values.append(np.full(len(part), np.nan))
            present.append(np.zeros(len(part), bool))
        else:
            values.append(column.values)
            present.append(column.mask())
    mask = np.concatenate(present)
    return Column(np.concatenate(values), None if mask.all() else mask)
