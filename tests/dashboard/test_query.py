"""Windows against brute force: every extreme survives, old bins never change, deltas are whole bins."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dashboard.query as query_module
from dashboard.overlays import Overlays
from dashboard.query import MAX_SEGMENTS, shift_for
from dashboard.store import chunks, pyramid, series
from dashboard.store.base import Segment, SeriesKey, WindowQuery
from dashboard.store.table import TableStore
from monitor_core.batch import Batch, from_records
from monitor_core.record import Record

KEY = SeriesKey("run", 0)
VALUE = st.one_of(
    st.floats(-1e3, 1e3), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, -0.0]), st.none()
)
#: (attempt goes up, steps forward (0 or less: goes back), value)
ROW = st.tuples(st.booleans(), st.integers(-3, 9), VALUE)


def records_of(rows: list[tuple[bool, int, float | None]]) -> list[Record]:
    made, attempt, seq, step = [], 1, 0, 0
    for up, move, value in rows:
        if up and made:
            attempt, seq = attempt + 1, 0
        step = max(0, step + move)
        made.append(Record(seq, attempt, step, 1, float(len(made)), {} if value is None else {"loss": value}))
        seq += 1
    return made


def store_of(records: list[Record], cuts: list[int] | None = None) -> TableStore:
    store = TableStore()
    edges = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts or [])})
    for start, stop in pairwise(edges):
        store.append(KEY, from_records(records[start:stop]))
    return store


def brute(records: list[Record], query: WindowQuery, shift: int) -> list[dict[str, Any]]:
    """The segments as the docstrings say, in plain Python."""
    stretches: list[list[Record]] = []
    for record in records:
        last = stretches[-1][-1] if stretches else None
        if last is None or last.attempt != record.attempt or record.step < last.step:
            stretches.append([])
        stretches[-1].append(record)
    found = []
    for number, stretch in enumerate(stretches):
        later = [other.step for rest in stretches[number + 1 :] for other in rest]
        ghost = max(min(later), stretch[0].step) if later and min(later) <= stretch[-1].step else None
        bins: dict[int, list[Record]] = {}
        for record in stretch:
            low = query.first_step is None or record.step >= query.first_step
            high = query.last_step is None or record.step <= query.last_step
            if "loss" in record.scalars and low and high:
                bins.setdefault(record.step >> shift, []).append(record)
        rows, bad = [], []
        for _, members in sorted(bins.items()):
            finite = [record for record in members if math.isfinite(record.scalars["loss"])]
            if finite:
                values = [record.scalars["loss"] for record in finite]
                rows.append(
                    (finite[0].step, finite[-1].step, min(values), max(values), values[0], values[-1], len(values))
                )
            kinds: dict[str, Record] = {}
            for record in members:
                if not math.isfinite(record.scalars["loss"]):
                    kinds.setdefault(str(record.scalars["loss"]), record)
            bad += [(record.step, kind) for kind, record in kinds.items()]
        found.append({"attempt": stretch[0].attempt, "ghost": ghost, "rows": rows, "bad": sorted(bad)})
    return found


def seen(segment: Segment) -> dict[str, Any]:
    rows = zip(
        segment.first_step,
        segment.last_step,
        segment.min,
        segment.max,
        segment.first,
        segment.last,
        segment.count,
        strict=True,
    )
    bad = sorted(
        (int(step), str(float(value)))
        for step, value in zip(segment.nonfinite_step, segment.nonfinite_value, strict=True)
    )
    return {
        "attempt": segment.attempt, "ghost": segment.superseded_from,
        "rows": [tuple(item.item() for item in row) for row in rows], "bad": bad,
    }  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(ROW, min_size=1, max_size=60), st.integers(1, 40), st.lists(st.integers(0, 60), max_size=4), st.data())
def test_windows_equal_brute_force(rows: list[Any], columns: int, cuts: list[int], data: st.DataObject) -> None:
    records = records_of(rows)
    first = data.draw(st.one_of(st.none(), st.integers(0, 100)))
    last = data.draw(st.one_of(st.none(), st.integers(0, 100)))
    query = WindowQuery(KEY, "loss", columns, first, last)
    window = store_of(records, cuts).snapshot().window(query)
    if not any("loss" in record.scalars for record in records) or (
        first is not None and last is not None and last < first
    ):
        assert not window.points
        return
    if window.segments:
        assert [seen(segment) for segment in window.segments] == brute(
            records, query, window.width_steps.bit_length() - 1
        )
        assert window.points == sum(
            "loss" in r.scalars and (first is None or r.step >= first) and (last is None or r.step <= last)
            for r in records
        )
        for segment in window.segments:
            assert (
                (segment.mean >= segment.min - 1e-9 * abs(segment.min))
                & (segment.mean <= segment.max + 1e-9 * abs(segment.max))
            ).all()


@settings(deadline=None, max_examples=200)
@given(st.lists(ROW, min_size=2, max_size=60), st.integers(1, 60), st.integers(1, 30))
def test_a_delta_brings_exactly_the_bins_that_new_rows_touched(rows: list[Any], cut: int, columns: int) -> None:
    """What a page does with a delta (drop from the first fresh bin on, append) gives the whole window."""
    records = records_of(rows)
    cut %= len(records)
    store = store_of(records[:cut]) if cut else TableStore()
    before = store.snapshot()
    query = WindowQuery(KEY, "loss", columns, 0, 200)
    old = before.window(query) if cut else None
    store.append(KEY, from_records(records[cut:]))
    full = store.snapshot().window(query)
    delta = store.snapshot().window(WindowQuery(KEY, "loss", columns, 0, 200, since_rows=cut))
    assert delta.width_steps == full.width_steps
    assert len(delta.segments) == len(full.segments)
    for number, (part, whole) in enumerate(zip(delta.segments, full.segments, strict=True)):
        had = old.segments[number] if old and number < len(old.segments) else None
        merged = merge(had, part, full.width_steps)
        assert merged == (whole.first_step.tolist(), whole.max.tolist(), whole.nonfinite_step.tolist())


def merge(old: Segment | None, fresh: Segment, width: int) -> tuple[list[int], list[float], list[int]]:
    if old is None:
        return fresh.first_step.tolist(), fresh.max.tolist(), fresh.nonfinite_step.tolist()
    starts = [int(steps[0]) for steps in (fresh.first_step, fresh.nonfinite_step) if len(steps)]
    start = min(starts) // width * width if starts else math.inf
    keep, keep_bad = old.first_step < start, old.nonfinite_step < start
    return (
        [*old.first_step[keep].tolist(), *fresh.first_step.tolist()],
        [*old.max[keep].tolist(), *fresh.max.tolist()],
        [*old.nonfinite_step[keep_bad].tolist(), *fresh.nonfinite_step.tolist()],
    )


@settings(deadline=None, max_examples=100)
@given(st.lists(ROW, min_size=2, max_size=50), st.permutations(range(5)))
def test_late_batches_give_the_same_windows(rows: list[Any], order: list[int]) -> None:
    records = records_of(rows)
    parts = np.array_split(np.arange(len(records)), 5)
    shuffled = TableStore()
    for part in order:
        shuffled.append(KEY, from_records([records[row] for row in parts[part]]))
    query = WindowQuery(KEY, "loss", 7)
    a, b = shuffled.snapshot().window(query), store_of(records).snapshot().window(query)
    assert [seen(s) for s in a.segments] == [seen(s) for s in b.segments]
    assert [c.tolist() for c in shuffled.snapshot().column(KEY, "loss")[:2]] == [
        c.tolist() for c in store_of(records).snapshot().column(KEY, "loss")[:2]
    ]


def steps_batch(steps: np.ndarray, values: np.ndarray, first: int = 0) -> Batch:
    from monitor_core.batch import Column

    rows = np.arange(first, first + len(steps))
    ones = np.ones(len(steps), np.int64)
    return Batch(rows, ones, steps, ones, rows.astype(float), {"loss": Column(values)})


def test_all_of_100_spikes_in_a_million_steps_are_drawn_at_2000_columns_and_at_every_zoom() -> None:
    count = 1_000_000
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.01, count)
    spikes = rng.choice(count // 1000, 100, replace=False) * 1000 + rng.integers(0, 1000, 100)
    values[spikes] = 100 + np.arange(100)
    store = TableStore()
    store.append(KEY, steps_batch(np.arange(count), values))
    snapshot = store.snapshot()
    for first, last in ((0, count - 1), (0, count // 3), (333_333, 777_777)):
        segment = snapshot.window(WindowQuery(KEY, "loss", 2000, first, last)).segments[0]
        inside = [int(step) for step in spikes if first <= step <= last]
        drawn = sum(any(segment.max[(segment.first_step <= s) & (segment.last_step >= s)] >= 100) for s in inside)
        assert drawn == len(inside)
        assert len(segment.max) <= 2000


def test_opposite_spikes_survive_at_every_width() -> None:
    values = np.zeros(4096)
    values[1000], values[1050] = 9.0, -9.0
    store = TableStore()
    store.append(KEY, steps_batch(np.arange(4096), values))
    for columns in (1, 2, 3, 10, 100, 1000, 5000):
        segment = store.snapshot().window(WindowQuery(KEY, "loss", columns)).segments[0]
        assert (segment.max.max(), segment.min.min()) == (9.0, -9.0)


def test_an_evaluation_after_every_epoch_does_not_cut_the_curves() -> None:
    """Its record stands at the step before it; were that a new stretch, only the newest 48 epochs would be drawn."""
    records = []
    for step in range(1, 121):
        records.append(Record(len(records), 1, step, step, 0.0, {"loss": float(step)}))
        records.append(Record(len(records), 1, step, step, 0.0, {"eval_loss": -float(step)}))
    for arrival in ([], [1, 2, 3, 100]):
        snapshot = store_of(records, arrival).snapshot()
        for metric, sign in (("loss", 1.0), ("eval_loss", -1.0)):
            window = snapshot.window(WindowQuery(KEY, metric, 1000))
            assert not window.older_left_out
            (segment,) = window.segments
            assert list(segment.first) == [sign * step for step in range(1, 121)]


def test_an_evaluation_in_every_window_hides_no_finding() -> None:
    """As in the recorder, so that a finished file gives the findings that the live training had."""
    records = []
    for step in range(1, 301):
        records.append(Record(len(records), 1, step, 1, 0.0, {"loss": 0.1 if step % 2 else 2.0}))
        if step % 30 == 0:
            records.append(Record(len(records), 1, step, 1, 0.0, {"eval_loss": 0.5}))
    overlays = Overlays()
    while overlays.advance(store_of(records).snapshot()):
        pass
    assert [(item.finding.kind, item.finding.first_step) for item in overlays.findings("run")] == [
        ("loss_oscillation", 100)
    ]


def test_bins_are_aligned_so_that_old_ones_never_change() -> None:
    store = TableStore()
    values = np.random.default_rng(2).normal(size=3000)
    store.append(KEY, steps_batch(np.arange(1000), values[:1000]))
    old = store.snapshot()
    first = old.window(WindowQuery(KEY, "loss", 100, 0, 4095)).segments[0]
    store.append(KEY, steps_batch(np.arange(1000, 3000), values[1000:], 1000))
    second = store.snapshot().window(WindowQuery(KEY, "loss", 100, 0, 4095)).segments[0]
    known = len(first.min) - 1
    assert np.array_equal(first.min[:known], second.min[:known])
    assert np.array_equal(first.mean[:known], second.mean[:known])
    again = old.window(WindowQuery(KEY, "loss", 100, 0, 4095)).segments[0]
    assert np.array_equal(first.max, again.max), "a snapshot does not change while others append"


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 4000))
def test_the_width_is_the_smallest_power_of_two_that_fits(a: int, b: int, columns: int) -> None:
    first, last = min(a, b), max(a, b)
    shift = shift_for(first, last, columns)
    assert (last >> shift) - (first >> shift) + 1 <= columns
    assert shift == 0 or (last >> (shift - 1)) - (first >> (shift - 1)) + 1 > columns


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks, entries and levels of a few rows, so that small runs have all of them."""
    for module, name, value in (
        (chunks, "CHUNK_ROWS", 16), (chunks, "_FIRST_ROWS", 4), (series, "CHUNK_ROWS", 16), (series, "LEAST_FOLD", 8),
        (series, "LEAST_CLOSED", 3), (pyramid, "BIN_ROWS", 3), (pyramid, "LEVEL_BITS", 1), (pyramid, "_PROMOTE", 4),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


def check_window(store: TableStore, records: list[Record], query: WindowQuery) -> None:
    window = store.snapshot().window(query)
    shift = window.width_steps.bit_length() - 1
    expected = brute(records, query, shift)
    assert [seen(segment) for segment in window.segments] == expected[-MAX_SEGMENTS:]
    records_low, records_high = min(r.step for r in records), max(r.step for r in records)
    stretches = stretches_of(records)
    low = records_low if query.first_step is None else query.first_step
    high = records_high if query.last_step is None else query.last_step
    counted = stretches if low <= records_low and high >= records_high else stretches[-MAX_SEGMENTS:]
    values = [r.scalars["loss"] for part in counted for r in part if low <= r.step <= high and "loss" in r.scalars]
    assert window.points == len(values)
    assert window.nonfinite == sum(not math.isfinite(value) for value in values)
    for segment, stretch in zip(window.segments, stretches[-MAX_SEGMENTS:], strict=True):
        largest = np.maximum(np.abs(segment.min), np.abs(segment.max))
        assert (np.abs(segment.mean - means_of(stretch, query, shift)) <= 1e-12 * largest).all()


def stretches_of(records: list[Record]) -> list[list[Record]]:
    found: list[list[Record]] = []
    for record in records:
        last = found[-1][-1] if found else None
        if last is None or last.attempt != record.attempt or record.step < last.step:
            found.append([])
        found[-1].append(record)
    return found


def means_of(stretch: list[Record], query: WindowQuery, shift: int) -> list[float]:
    bins: dict[int, list[float]] = {}
    for record in stretch:
        value = record.scalars.get("loss", math.nan)
        low = query.first_step is None or record.step >= query.first_step
        high = query.last_step is None or record.step <= query.last_step
        if math.isfinite(value) and low and high:
            bins.setdefault(record.step >> shift, []).append(value)
    return [math.fsum(value / len(values) for value in values) for _, values in sorted(bins.items())]


@pytest.mark.usefixtures("small")
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 2**32), st.integers(1, 40), st.sampled_from(["plain", "wide", "sparse", "bad", "back", "same", "huge"]),
    st.lists(st.integers(0, 400), max_size=8), st.booleans(), st.data(),
)  # fmt: skip
def test_windows_from_all_levels_equal_brute_force(
    seed: int, columns: int, kind: str, cuts: list[int], late: bool, data: st.DataObject
) -> None:
    records = made_up(np.random.default_rng(seed), kind)
    edges = sorted({0, len(records), *(cut % len(records) for cut in cuts)})
    parts = [records[start:stop] for start, stop in pairwise(edges)]
    store = TableStore()
    for number in data.draw(st.permutations(range(len(parts)))) if late else range(len(parts)):
        store.append(KEY, from_records(parts[number]))
        if data.draw(st.booleans()):
            store.snapshot()
    steps = sorted(record.step for record in records)
    bound = st.one_of(st.none(), st.integers(steps[0] - 2, steps[-1] + 2), st.sampled_from(steps))
    first, last = data.draw(bound), data.draw(bound)
    if first is not None and last is not None and last < first:
        first, last = last, first
    if (first is None or first <= steps[-1]) and (last is None or last >= steps[0]):
        check_window(store, records, WindowQuery(KEY, "loss", columns, first, last))


def made_up(rng: np.random.Generator, kind: str) -> list[Record]:
    """A few hundred records of one shape, with absent, non-finite and extreme values among them."""
    found: list[Record] = []
    attempt, seq, step = 1, 0, int(rng.integers(-300, 300))
    if kind == "huge":
        step = -(2**62)
    special = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1.7e308, -1.7e308, None]
    odds = {"bad": 0.6, "sparse": 0.02}.get(kind, 0.1)
    for row in range(int(rng.integers(1, 300))):
        if kind == "back" and rng.random() < 0.03:
            step -= int(rng.integers(1, 30))
        if rng.random() < 0.01:
            attempt, seq = attempt + 1, 0
        step += {"same": 0, "wide": 1 if row < 150 else 50, "huge": 2**54}.get(kind, int(rng.integers(0, 3)))
        value = special[rng.integers(len(special))] if rng.random() < odds else float(rng.normal())
        if kind == "sparse" and rng.random() < 0.9:
            value = None
        found.append(Record(seq, attempt, step, 1, 0.0, {} if value is None else {"loss": value}))
        seq += 1
    found.append(Record(seq, attempt, step, 1, 0.0, {"loss": 1.0}))
    return found


@pytest.mark.usefixtures("small")
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.sampled_from(["plain", "wide", "sparse", "bad", "back"]), st.integers(1, 30))
def test_deltas_from_all_levels_are_the_ends_of_whole_windows(seed: int, kind: str, columns: int) -> None:
    records = made_up(np.random.default_rng(seed), kind)
    cut = len(records) * 2 // 3
    store = store_of(records[:cut], [cut // 3])
    old = store.snapshot().window(WindowQuery(KEY, "loss", columns, -400, 9000)) if cut else None
    store.append(KEY, from_records(records[cut:]))
    full = store.snapshot().window(WindowQuery(KEY, "loss", columns, -400, 9000))
    delta = store.snapshot().window(WindowQuery(KEY, "loss", columns, -400, 9000, since_rows=cut))
    assert (delta.points, delta.nonfinite) == (full.points, full.nonfinite)
    for number, (part, whole) in enumerate(zip(delta.segments, full.segments, strict=True)):
        had = old.segments[number] if old and number < len(old.segments) else None
        merged = merge(had, part, full.width_steps)
        assert merged == (whole.first_step.tolist(), whole.max.tolist(), whole.nonfinite_step.tolist())


def test_spikes_survive_every_zoom_of_a_long_run_and_cost_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted, not time: what a window reads does not grow with the run."""
    count = 1_000_000
    values = np.random.default_rng(5).normal(0, 0.01, count)
    spikes = np.arange(100) * 10_000 + 37
    values[spikes] = 100.0
    values[[123_456, 777_777]] = math.nan, math.inf
    store = TableStore()
    for start in range(0, count, 50_000):
        rows = slice(start, start + 50_000)
        store.append(KEY, steps_batch(np.arange(start, start + 50_000), values[rows], start))
    snapshot = store.snapshot()
    read: list[int] = []
    plain = query_module.entries_of
    monkeypatch.setattr(query_module, "entries_of", lambda step, *rest: read.append(len(step)) or plain(step, *rest))
    for width in (count, count // 2, 250_000, 90_000, 20_000, 4_000, 100):
        for first in range(0, count, max(width, count // 10)):
            last = min(count, first + width) - 1
            read.clear()
            (segment,) = snapshot.window(WindowQuery(KEY, "loss", 2000, first, last)).segments
            assert sum(read) <= 2000 * 128 + pyramid.LEAST_FOLD
            inside = spikes[(spikes >= first) & (spikes <= last)]
            place = np.searchsorted(segment.last_step, inside)
            assert (segment.max[place] == 100.0).all()
            assert segment.count.sum() + len(segment.nonfinite_step) == last - first + 1
