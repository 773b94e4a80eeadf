"""Records as columns: absent is a mask, and no operation mixes rows up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor_core.batch import NO_EPOCH, Batch, concat, empty_batch, from_records
from monitor_core.record import Record

RECORDS = [
    Record(0, 1, 10, None, 0.5, {"loss": 1.0, "lr": 0.1}),
    Record(1, 1, 11, 2, 1.5, {"loss": math.nan}, {"input_shapes": [[2]]}),
    Record(2, 2, 12, 2, 2.5, {"lr": -0.0, "extra": math.inf}, {"other": {"a": 1}}),
]


def same(batch: Batch, records: list[Record]) -> bool:
    return list(map(repr, batch.records())) == list(map(repr, records))


def test_a_batch_gives_back_its_records() -> None:
    assert same(from_records(RECORDS), RECORDS)


def test_a_measured_nan_is_present_and_an_absent_metric_is_not() -> None:
    batch = from_records(RECORDS)
    loss = batch.columns["loss"]
    assert loss.mask().tolist() == [True, True, False]
    assert np.isnan(loss.values[1:]).all()
    assert batch.epoch.tolist() == [NO_EPOCH, 2, 2]


def test_a_metric_that_every_row_has_carries_no_mask() -> None:
    column = from_records(RECORDS[:1]).columns["loss"]
    assert column.present is None
    assert column.mask().tolist() == [True]


def test_columns_have_the_declared_types() -> None:
    batch = from_records(RECORDS)
    assert {array.dtype for array in (batch.seq, batch.attempt, batch.step, batch.epoch)} == {np.dtype(np.int64)}
    assert batch.timestamp.dtype == np.float64
    assert {column.values.dtype for column in batch.columns.values()} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    "rows",
    [slice(1, None), slice(None, None, -1), np.array([2, 0]), np.array([True, False, True]), slice(0, 0)],
    ids=["tail", "reversed", "numbers", "mask", "nothing"],
)
def test_taking_rows_keeps_each_row_together(rows: object) -> None:
    chosen = np.arange(3)[rows].tolist()  # type: ignore[call-overload]
    assert same(from_records(RECORDS).take(rows), [RECORDS[row] for row in chosen])  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", range(4))
def test_joining_parts_gives_the_whole(cut: int) -> None:
    joined = concat([from_records(RECORDS[:cut]), empty_batch(), from_records(RECORDS[cut:])])
    assert [record._replace(scalars={}) for record in joined.records()] == [r._replace(scalars={}) for r in RECORDS]
    assert [repr(sorted(record.scalars.items())) for record in joined.records()] == [
        repr(sorted(record.scalars.items())) for record in RECORDS
    ]


def test_nothing_joined_is_an_empty_batch() -> None:
    assert len(concat([])) == len(empty_batch()) == 0
    assert list(concat([]).records()) == []
