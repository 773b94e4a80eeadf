"""JSON objects, one per record, as columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from monitor_core.batch import NO_EPOCH, Batch, Column
from monitor_core.limits import MAX_STEP
from monitor_core.record import RESERVED_NAMES

Row = dict[str, Any]
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def columns_of(rows: list[Row], shapes: Mapping[tuple[str, ...], list[int]], next_seq: int) -> tuple[Batch, int]:
    """Columns of checked rows, and the ``seq`` that follows on them.

    ``shapes``: the keys that rows have, to the numbers of the rows that have just these. ``next_seq``: ``seq`` for
    rows that carry none.
    """
    seq = _seq(rows, next_seq)
    nested: dict[int, dict[str, object]] = {}
    columns = _columns(rows, shapes, nested)
    if any("net_outputs" in shape for shape in shapes):
        loss = _outputs_loss(rows, columns.get("loss"))
        if loss is not None:
            columns["loss"] = loss
    times = columns.pop("timestamp", None)
    batch = Batch(
        np.array(seq, np.int64),
        np.array([row.get("attempt", 1) for row in rows], np.int64),
        np.array([row["step"] for row in rows], np.int64),
        np.array([NO_EPOCH if (value := row.get("epoch")) is None else value for row in rows], np.int64),
        np.full(len(rows), np.nan) if times is None else times.values,
        columns,
        {row: nested[row] for row in sorted(nested)},
    )
    return batch, min(seq[-1] + 1, MAX_STEP) if seq else next_seq


def _seq(rows: list[Row], next_seq: int) -> list[int]:
    seq: list[int] = []
    for row in rows:
        found = row.get("seq", next_seq)
        seq.append(found)
        next_seq = min(found + 1, MAX_STEP)
    return seq


def _columns(
    rows: list[Row], shapes: Mapping[tuple[str, ...], list[int]], nested: dict[int, dict[str, object]]
) -> dict[str, Column]:
    """Numbers of each key over the rows, ``timestamp`` too; what is nested goes to ``nested``.

    Visits only keys that are there, so that a few wide rows among many narrow ones cost what their bytes cost.
    """
    having: dict[str, list[list[int]]] = {}
    for shape, numbers in shapes.items():
        for name in shape:
            if name not in RESERVED_NAMES or name == "timestamp":
                having.setdefault(name, []).append(numbers)
    columns = {}
    for name, groups in having.items():
        numbers = groups[0] if len(groups) == 1 else [number for group in groups for number in group]
        inner: dict[int, object] = {}
        column = _column([rows[number][name] for number in numbers], inner)
        for place, value in inner.items():
            nested.setdefault(numbers[place], {})[name] = value
        if column is not None:
            in_order = len(groups) == 1 and len(numbers) == len(rows)
            columns[name] = column if in_order else _spread(column, numbers, len(rows))
    return columns


def _column(found: list[Any], nested: dict[int, object]) -> Column | None:
    """What is a number in ``found``; what is nested goes to ``nested``; None when there is no number."""
    kinds = set(map(type, found))
    if kinds == {float}:
        return Column(np.array(found, np.float64))
    if kinds & {dict, list}:
        nested.update({place: value for place, value in enumerate(found) if isinstance(value, (dict, list))})
    values = [value if value.__class__ is float else _number(value) for value in found]
    if None not in values:
        return Column(np.array(values, np.float64))
    present = np.array([value is not None for value in values], bool)
    return Column(np.array(values, np.float64), present) if present.any() else None


def _spread(column: Column, numbers: list[int], rows: int) -> Column:
    """The column of some rows, with these numbers, over all rows."""
    values = np.full(rows, np.nan)
    values[numbers] = column.values
    present = np.zeros(rows, bool)
    present[numbers] = column.mask()
    return Column(values, None if present.all() else present)


def _number(found: object) -> float | None:
    if isinstance(found, (float, int)):
        try:
            return float(found)
        except OverflowError:
            return math.inf if found > 0 else -math.inf
    return NON_FINITE.get(found) if isinstance(found, str) else None


def _outputs_loss(rows: list[Row], loss: Column | None) -> Column | None:
    """``loss`` completed by ``net_outputs.loss``, the article's place for it; None when there is nothing to complete."""
    if loss is not None and loss.present is None:
        return None
    values: list[object] = []
    for row in rows:
        outputs = row.get("net_outputs")
        own = _number(row.get("loss"))
        values.append(outputs.get("loss") if own is None and isinstance(outputs, Mapping) else own)
    return _column(values, {})
