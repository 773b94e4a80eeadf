"""Identity, duplicates, gaps, Arrow."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.store.base import Gap, SeriesKey
from dashboard.store.intervals import IntervalSet
from dashboard.store.table import TableStore
from monitor_core.batch import from_records
from monitor_core.record import Record

KEY = SeriesKey("run", 0)


def record(seq: int, attempt: int = 1, **scalars: float) -> Record:
    return Record(seq, attempt, seq, 1, float(seq), scalars or {"loss": float(seq)})


@given(st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=12))
def test_an_interval_set_is_a_set(parts: list[list[int]]) -> None:
    intervals, known = IntervalSet(), set[int]()
    for part in parts:
        fresh = intervals.add(np.array(part, np.int64))
        for number, is_fresh in zip(part, fresh.tolist(), strict=True):
            assert is_fresh == (number not in known)
            known.add(number)
    assert intervals.missing() == (max(known) + 1 - len(known) if known else 0)
    absent = [number for low, high in intervals.gaps(30) for number in range(low, high)]
    assert absent == [number for number in range(max([30, *(one + 1 for one in known)])) if number not in known]
    assert intervals.missing(30) == max([30, *(one + 1 for one in known)]) - len(known)


def test_a_record_counts_once_however_often_and_in_whatever_order_it_comes() -> None:
    store = TableStore()
    records = [record(seq, attempt) for attempt in (1, 2) for seq in range(100)]
    for _ in range(4):
        random.Random(3).shuffle(records)
        for start in range(0, len(records), 17):
            store.append(KEY, from_records(records[start : start + 17]))
    extent = store.snapshot().extent(KEY)
    assert (extent.rows, extent.attempts, extent.missing) == (200, (1, 2), 0)
    attempt, step, value = store.snapshot().column(KEY, "loss")
    assert list(zip(attempt, step, strict=True)) == [(a, s) for a in (1, 2) for s in range(100)]
    assert (value == step).all()
    assert extent.last == {"loss": 99.0}


def test_gaps_in_seq_are_counted() -> None:
    store = TableStore()
    store.append(KEY, from_records([record(seq) for seq in (0, 1, 2, 10, 11)]))
    assert store.snapshot().extent(KEY).missing == 7
    assert store.snapshot().gaps(KEY) == (Gap(1, 3, 9),)
    store.expect(KEY, 1, 20)
    assert store.snapshot().gaps(KEY) == (Gap(1, 3, 9), Gap(1, 12, 19))
    store.expect(KEY, 1, 12)
    store.append(KEY, from_records([record(seq) for seq in range(3, 10)]))
    assert store.snapshot().extent(KEY).missing == 0


def test_absent_is_null_and_nan_is_nan_in_arrow() -> None:
    store = TableStore()
    store.append(KEY, from_records([record(0, loss=math.nan), record(1, other=1.0)]))
    store.append(KEY, from_records([record(2, loss=math.inf)]))
    table = store.snapshot().table(KEY)  # type: ignore[attr-defined]
    loss = table.column("loss").to_pylist()
    assert math.isnan(loss[0])
    assert loss[1:] == [None, math.inf]
    assert table.column("other").to_pylist() == [None, 1.0, None]
    assert table.column("step").to_pylist() == [0, 1, 2]


def test_runs_and_ranks_are_apart_and_can_be_dropped() -> None:
    store = TableStore()
    for run in ("a", "b"):
        for rank in (0, 1):
            store.append(SeriesKey(run, rank), from_records([record(0, loss=float(rank))]))
    before = store.snapshot()
    store.drop("a")
    assert store.snapshot().series() == (SeriesKey("b", 0), SeriesKey("b", 1))
    assert len(before.series()) == 4
    with pytest.raises(KeyError):
        store.snapshot().extent(SeriesKey("a", 0))


@pytest.mark.parametrize("late", [False, True])
def test_rows_as_arrays_are_the_rows_as_lists(late: bool) -> None:
    store = TableStore()
    parts = [[record(0, loss=math.nan), record(1, other=1.0)], [record(2, loss=math.inf), record(3, loss=-0.0)]]
    for part in reversed(parts) if late else parts:
        store.append(KEY, from_records(part))
    snapshot = store.snapshot()
    for start, stop in ((0, 4), (1, 3), (2, 99), (4, 9)):
        lists = snapshot.rows(KEY, start, stop, ["loss", "other", "none"])
        arrays = snapshot.columns(KEY, start, stop, ["loss", "other", "none"])
        assert (arrays.layout, arrays.step.tolist()) == (lists.layout, lists.step)
        for column, values in zip(arrays.columns[:2], lists.columns[:2], strict=True):
            assert column is not None
            assert column.mask().tolist() == [value is not None for value in values]
            shown = [str(value) for value in column.values[column.mask()].tolist()]
            assert shown == [str(value) for value in values if value is not None]
        assert (arrays.columns[2], lists.columns[2]) == (None, [None] * len(lists.step))
    assert snapshot.columns(KEY, 2, 4, ["loss"]).columns[0].present is None  # type: ignore[union-attr]
