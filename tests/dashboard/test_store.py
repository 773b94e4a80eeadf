"""Identity, duplicates, gaps, Arrow."""

from __future__ import annotations

import errno
import gc
import math
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.store import chunks, series
from dashboard.store.base import Gap, SeriesKey, WindowQuery
from dashboard.store.chunks import FloatColumn, IntColumn
from dashboard.store.intervals import IntervalSet
from dashboard.store.spill import DiskCache
from dashboard.store.table import TableStore
from monitor_core.batch import Batch, Column, from_records
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


def test_arrays_of_a_snapshot_cannot_be_written_to() -> None:
    store = TableStore()
    store.append(KEY, from_records([record(0, loss=1.0), record(1, other=1.0)]))
    (column,) = store.snapshot().columns(KEY, 0, 2, ["loss"]).columns
    assert column is not None
    assert column.present is not None
    for array in (column.values, column.present):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
            st.lists(st.integers(-5, 5), min_size=1, max_size=20),
            st.builds(
                lambda a, s, n: [a + s * i for i in range(n)],
                st.integers(-9, 9),
                st.integers(-3, 3),
                st.integers(1, 30),
            ),
        ),
        max_size=12,
    ),
    st.integers(0, 200),
)
def test_compact_whole_numbers_are_exact(parts: list[list[int]], keep: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", 16)
        column, known, views = IntColumn(), list[int](), list[int]()
        for part in parts:
            column.append(np.array(part, np.int64))
            known += part
            views.append(len(known))
        for rows in views:
            assert column.read(0, rows).tolist() == known[:rows]
        assert [column.at(row) for row in range(len(known))] == known
        assert column.cut_off(min(keep, len(known))).read(0, min(keep, len(known))).tolist() == known[:keep]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=30)), max_size=9
    )
)
def test_a_column_keeps_every_bit_and_what_is_absent(parts: list[tuple[int, list[float | None]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", 16)
        patch.setattr(chunks, "_FIRST_ROWS", 3)
        column, known, moments = FloatColumn(), list[float | None](), list[tuple[int, int]]()
        for gap, part in parts:
            known += [None] * gap
            present = np.array([value is not None for value in part])
            values = np.array([np.nan if value is None else value for value in part])
            column.append(len(known), values, None if present.all() else present)
            known += part
            moments.append((len(known), column.rows))
        for rows, have in moments:
            found = column.read(0, rows, have)
            assert found.mask().tolist() == [value is not None for value in known[:rows]]
            bits = found.values[found.mask()].view(np.int64).tolist()
            assert bits == np.array([value for value in known[:rows] if value is not None]).view(np.int64).tolist()


def test_memory_per_point_is_bounded_for_short_and_long_runs() -> None:
    for rows, most in ((1_000, 12), (70_000, 12), (300_000, 12)):
        store = TableStore()
        for start in range(0, rows, 1000):
            store.append(KEY, wide_batch(start, min(rows, start + 1000)))
        memory = store.memory_bytes()
        assert memory.columns_bytes <= most * rows * 10
        assert memory.pyramid_bytes <= rows * 10
        assert memory.spilled_bytes == 0


def wide_batch(start: int, stop: int, run: int = 1) -> Batch:
    """Ten metrics that show in every bit which row and run they belong to."""
    rows = np.arange(start, stop)
    ones = np.ones(len(rows), np.int64)
    columns = {f"m{number}": Column(rows * 0.1 + number * run) for number in range(10)}
    return Batch(rows, ones, rows, ones, rows.astype(float), columns)


def test_many_late_batches_are_sorted_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, sorts = TableStore(), list[int]()
    store.append(KEY, wide_batch(100_000, 200_000))
    plain = series.Series._cut_off
    monkeypatch.setattr(series.Series, "_cut_off", lambda self, rows: sorts.append(rows) or plain(self, rows))
    before = store.snapshot()
    for start in reversed(range(0, 100_000, 1000)):
        store.append(KEY, wide_batch(start, start + 1000))
    after = store.snapshot()
    assert sorts == [0]
    assert after.columns(KEY, 0, 10**6, ["m3"]).step.tolist() == list(range(200_000))
    assert after.column(KEY, "m3")[2].tolist() == wide_batch(0, 200_000).columns["m3"].values.tolist()
    assert before.columns(KEY, 0, 10**6, ["m3"]).step.tolist() == list(range(100_000, 200_000))
    assert after.extent(KEY).last["m3"] == wide_batch(199_999, 200_000).columns["m3"].values[0]


def everything(store: TableStore, key: SeriesKey) -> list[bytes]:
    snapshot = store.snapshot()
    window = snapshot.window(WindowQuery(key, "m4", 300, 1000, 90_000)).segments[0]
    columns = snapshot.columns(key, 0, 10**6, ["m0", "m9"])
    parts = [window.min, window.mean, window.last_step, columns.step, *snapshot.column(key, "m5")]
    parts += [column.values for column in columns.columns if column is not None]
    return [part.tobytes() for part in parts] + [snapshot.table(key).column("m7").to_numpy().tobytes()]


def test_what_is_above_the_budget_goes_to_files_and_answers_alike(tmp_path: Path) -> None:
    plain, small = TableStore(), TableStore(24 << 20, DiskCache(tmp_path))
    for run in range(1, 5):
        for start in range(0, 200_000, 10_000):
            for store in (plain, small):
                store.append(SeriesKey(str(run), 0), wide_batch(start, start + 10_000, run))
    old = small.snapshot()
    memory = small.memory_bytes()
    assert memory.columns_bytes + memory.pyramid_bytes <= 24 << 20
    assert memory.spilled_bytes > 30 << 20
    assert small.spill_state == ""
    for run in range(1, 5):
        assert everything(plain, SeriesKey(str(run), 0)) == everything(small, SeriesKey(str(run), 0))
    for store in (plain, small):  # late rows among those that are in files
        store.append(SeriesKey("1", 0), wide_batch(200_100, 200_200, 1))
        store.append(SeriesKey("1", 0), wide_batch(200_000, 200_100, 1))
    assert everything(plain, SeriesKey("1", 0)) == everything(small, SeriesKey("1", 0))
    small.drop("1")
    assert small.memory_bytes().spilled_bytes < memory.spilled_bytes
    assert old.column(SeriesKey("1", 0), "m5")[2].tolist() == wide_batch(0, 200_000, 1).columns["m5"].values.tolist()


def test_a_cache_that_cannot_be_written_loses_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = TableStore(1 << 20, DiskCache(tmp_path / "missing"))
    for start in range(0, 200_000, 10_000):
        store.append(KEY, wide_batch(start, start + 10_000))
    assert "cannot be written" in store.spill_state
    assert sum("cannot be written" in told.getMessage() for told in caplog.records) == 1
    assert store.snapshot().column(KEY, "m5")[2].tolist() == wide_batch(0, 200_000).columns["m5"].values.tolist()
    assert store.memory_bytes().spilled_bytes == 0


def test_snapshots_of_other_threads_are_whole_while_rows_arrive() -> None:
    store, done, wrong = TableStore(), threading.Event(), list[str]()
    store.append(KEY, wide_batch(0, 100))

    def look() -> None:
        while not done.is_set():
            snapshot = store.snapshot()
            rows = snapshot.extent(KEY).rows
            found = snapshot.columns(KEY, 0, rows, ["m9"])
            segment = snapshot.window(WindowQuery(KEY, "m9", 50)).segments[0]
            values = found.columns[0].values  # type: ignore[union-attr]
            if len(found.step) != rows or int(segment.count.sum()) != rows or values[-1] != (rows - 1) * 0.1 + 9:
                wrong.append(f"{rows} {len(found.step)}")

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(100, 150_000, 100):
        store.append(KEY, wide_batch(start, start + 100))
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert store.snapshot().extent(KEY).rows == 150_000


def test_the_cache_directory_goes_with_the_store(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    (kept,) = cache.keep([np.arange(100_000.0)])
    assert kept.tolist() == list(range(100_000))
    assert len(list(tmp_path.iterdir())) == 1
    del cache
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert kept[-1] == 99_999.0


def test_a_full_disk_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Disk:
        full = True

        def keep(self, arrays: Sequence[Any]) -> list[Any]:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return [array.copy() for array in arrays]

    disk = Disk()
    store, told = TableStore(14 << 20, disk), list[bool]()
    for start in range(0, 300_000, 10_000):
        disk.full = start < 200_000
        store.append(KEY, wide_batch(start, start + 10_000))
        told.append("No space left" in store.spill_state)
    assert told[19]
    assert store.spill_state == ""
    assert store.memory_bytes().spilled_bytes > 15 << 20
    assert len(caplog.records) == 1


def test_the_series_that_was_longest_not_asked_for_goes_first(tmp_path: Path) -> None:
    keys = [SeriesKey(name, 0) for name in ("a", "b", "c")]
    store = TableStore(44 << 20, DiskCache(tmp_path))
    for key in keys[:2]:
        store.append(key, wide_batch(0, 200_000))
    store.snapshot().column(keys[0], "m1")
    store.append(keys[2], wide_batch(0, 150_000))
    spilled = [store._series[key].memory()[2] > 0 for key in keys]
    assert spilled == [False, True, False]
