"""CSV: the exact bytes, pandas and spreadsheets as readers, and what of resaved files is read."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from monitor_core.errors import FormatError
from monitor_core.formats import FORMATS
from monitor_core.formats.base import Problem
from monitor_core.limits import MAX_LINE_BYTES, MAX_METRICS
from monitor_core.record import FileHeader, Record

CSV = FORMATS["csv"]
HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
BOM = b"\xef\xbb\xbf"
ONE = Record(0, 1, 1, None, 5.5, {"loss": math.nan, "step_time": 0.1, "lr": 1e-5}, {"input_shapes": [[2, 3]]})
TWO = Record(1, 1, 2, 3, 6.0, {"grad_norm": math.inf, "loss": -math.inf})
HEAD = b"seq,attempt,step,epoch,timestamp,loss,step_time,grad_norm"
TEXT = HEAD + b",lr\n0,1,1,,5.5,NaN,0.1,,1e-05\n1,1,2,3,6.0,-inf,,inf,\n"


def contents(*records: Record) -> bytes:
    encoder = CSV.encoder(HEADER, records)
    return encoder.begin() + encoder.encode(records, first=True)


def decoded(data: bytes) -> tuple[list[Record], tuple[Problem, ...]]:
    state, batch, problems = CSV.decode(CSV.start(), data, final=True)
    assert state.offset == len(data)
    return list(batch.records()), problems


def test_the_bytes_of_a_file_are_these() -> None:
    assert contents(ONE, TWO) == TEXT


def test_a_byte_order_mark_only_where_a_name_needs_one() -> None:
    assert contents(ONE._replace(scalars={"损失": 1.0})).startswith(BOM + HEAD + ",损失\n".encode())
    assert not contents(ONE).startswith(BOM)


def test_pandas_reads_numbers_without_options(tmp_path: Path) -> None:
    path = tmp_path / "monitor_00001.csv"
    path.write_bytes(contents(ONE._replace(scalars={**ONE.scalars, "损失,1": 2.5}), TWO))
    table = pd.read_csv(path)
    assert list(table) == [*HEAD.decode().split(","), "lr", "损失,1"]
    assert table["step"].tolist() == [1, 2]
    assert all(kind.kind in "if" for kind in table.dtypes), "a text column would be an object"
    assert np.isnan(table["loss"][0])
    assert (table["loss"][1], table["grad_norm"][1], table["lr"][0]) == (-math.inf, math.inf, 1e-5)


def test_nested_values_have_no_place() -> None:
    (record, _), problems = decoded(contents(ONE, TWO))
    assert (dict(record.nested), problems) == ({}, ())


def test_a_new_metric_needs_the_next_file() -> None:
    encoder = CSV.encoder(HEADER, [ONE])
    assert encoder.accepts([ONE, TWO])
    wider = ONE._replace(scalars={"overflow": 1.0})
    assert not encoder.accepts([TWO, wider])
    with pytest.raises(FormatError, match=r"no columns for \['overflow'\]"):
        encoder.encode([wider], first=False)
    assert CSV.encoder(HEADER, [TWO, wider]).accepts([TWO, wider])


@pytest.mark.parametrize("name", ["=1+1", "+1", "-x", "@cmd", "\tx", "'quoted", "'=1"])
def test_a_name_that_a_spreadsheet_would_run_is_prefixed_and_read_back(name: str) -> None:
    data = contents(ONE._replace(scalars={name: 2.0}))
    cell = next(csv.reader(io.StringIO(data.decode())))[8]
    assert cell == "'" + name
    (record,), _ = decoded(data)
    assert dict(record.scalars) == {name: 2.0}


def test_two_names_that_would_look_alike_are_refused_and_not_mixed_up() -> None:
    with pytest.raises(FormatError, match="the same once written"):
        contents(ONE._replace(scalars={"\ud800": 1.0, "\\ud800": 2.0, "\\\\ud800": 3.0, "\\": 0.0}))


@pytest.mark.parametrize(
    "data",
    [
        BOM + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
        BOM + TEXT.replace(b"\n", b"\r\n") + b"\r\n",
        TEXT.replace(b"0.1,,1e", b"0.1, ,1e"),
        TEXT.replace(b",5.5,", b",5.50,").replace(b"0,1,1,,", b"0,1,1.0,,").replace(b",3,", b",3.0,"),
        b"\n\n" + TEXT.replace(b"inf,\n", b"inf,\n\n\n"),
    ],
    ids=["BOM", "CRLF", "BOM and CRLF", "blank cell", "resaved", "empty lines"],
)
def test_what_a_spreadsheet_makes_of_a_file_is_read_the_same(data: bytes) -> None:
    records, problems = decoded(data)
    assert problems == ()
    assert [record[:5] for record in records] == [ONE[:5], TWO[:5]]
    assert [{name: str(value) for name, value in record.scalars.items()} for record in records] == [
        {"loss": "nan", "step_time": "0.1", "lr": "1e-05"},
        {"loss": "-inf", "grad_norm": "inf"},
    ]


def test_what_pandas_writes_back_is_read_the_same(tmp_path: Path) -> None:
    path = tmp_path / "monitor_00001.csv"
    pd.read_csv(io.BytesIO(contents(ONE, TWO))).to_csv(path, index=False)
    records, problems = decoded(path.read_bytes())
    assert problems == ()
    assert [record[:5] for record in records] == [ONE[:5], TWO[:5]]
    assert records[1].scalars["grad_norm"] == math.inf


def test_a_header_written_again_by_a_resumed_logger_is_no_row() -> None:
    again = b"step,loss,extra\n3,0.5,7\n"
    records, problems = decoded(TEXT + TEXT.split(b"\n")[0] + b"\n" + b"2,1,9,,7.0,1.0,,,\n" + again)
    assert problems == ()
    assert [(record.seq, record.step) for record in records] == [(0, 1), (1, 2), (2, 9), (3, 3)]
    assert dict(records[3].scalars) == {"loss": 0.5, "extra": 7.0}


def test_columns_that_other_writers_leave_out_get_their_defaults() -> None:
    records, problems = decoded(b"step,loss\n10,0.5\n20,NaN\n")
    assert problems == ()
    assert [record[:4] for record in records] == [(0, 1, 10, None), (1, 1, 20, None)]
    assert all(math.isnan(record.timestamp) for record in records)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"2,1,3,,7.0,oops,,,", "could not convert string to float: 'oops'"),
        (b"2,1,3,,7.0,1,,", "8 cells under 9 columns"),
        (b"2,1,3,,7.0,1,,,,", "10 cells under 9 columns"),
        (b"2,1,3,,7.0,1_0,,,", "an underscore"),
        (b"2,1,,,7.0,1,,,", "step: expected a whole number, found an empty cell"),
        (b"2,1,3.5,,7.0,1,,,", "step: expected a whole number, found '3.5'"),
        (b"2,1,inf,,7.0,1,,,", "step: expected a whole number, found 'inf'"),
        (b"-2,1,3,,7.0,1,,,", "seq: expected whole numbers from 0"),
        (b"2,1,9223372036854775808,,7.0,1,,,", "step: expected whole numbers from -9223372036854775807"),
        (b"2,1,3,,7.0,\xff,,,", "codec can't decode byte 0xff"),
        (b"2,1,3,,7.0,\x00\x001,,,", "could not convert string to float"),
    ],
)
def test_a_bad_row_costs_only_itself(row: bytes, reason: str) -> None:
    good = b"5,1,6,,9.0,0.5,,,\n"
    records, problems = decoded(TEXT + row + b"\n" + good)
    assert [record.seq for record in records] == [0, 1, 5]
    assert records[2].scalars == {"loss": 0.5}
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", len(TEXT), len(row) + 1)]
    assert problems[0].reason.startswith("expected a row of numbers: ")
    assert reason in problems[0].reason


def test_many_bad_rows_among_good_ones_are_each_found() -> None:
    rows = [b"%d,1,%d,,0.0,%s,,,\n" % (n, n, b"x" if n % 10 == 3 else b"1.5") for n in range(2000)]
    records, problems = decoded(HEAD + b",lr\n" + b"".join(rows))
    assert [record.seq for record in records] == [n for n in range(2000) if n % 10 != 3]
    assert len(problems) == 200


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"loss,lr", "no column 'step' in b'loss,lr'"),
        (b"\xff,step", "'utf-8' codec"),
        (b'loss,"step,', "quotes that do not match, at character 5"),
        (b'"step"x,loss', "quotes that do not match"),
    ],
)
def test_a_file_without_a_header_is_one_problem(header: bytes, reason: str) -> None:
    records, problems = decoded(header + b"\n1,2\n3,4\n")
    assert records == []
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", 0, len(header) + 9)]
    assert reason in problems[0].reason


def test_a_name_of_any_length_that_fits_a_line_is_read() -> None:
    name = 'a "long", name' * 20_000
    (record,), problems = decoded(contents(ONE._replace(scalars={name: 2.0})))
    assert (dict(record.scalars) == {name: 2.0}, problems) == (True, ())


def test_a_header_above_the_cap_is_refused() -> None:
    _, problems = decoded(b"step," + b"m," * (MAX_METRICS + 20) + b"\n")
    assert "columns; expected at most" in problems[0].reason


def test_the_first_file_takes_as_many_metrics_as_fit_a_header_line() -> None:
    records = [Record(n, 1, n, None, 0.0, {f"{n}-{k}" + "x" * 1000: 1.0 for k in range(200)}) for n in range(10)]
    encoder = CSV.encoder(HEADER, records)
    assert encoder.accepts(records[:1])
    assert not encoder.accepts(records)
    assert len(encoder.begin()) <= MAX_LINE_BYTES
    (found,), problems = decoded(encoder.begin() + encoder.encode(records[:1], first=True))
    assert (found.scalars, problems) == (records[0].scalars, ())


@pytest.mark.parametrize("whole", [True, False])
def test_a_line_above_the_cap_is_passed_over(whole: bool) -> None:
    data = TEXT + b"2,1,3,,7.0," + b"1" * (3 * MAX_LINE_BYTES) + b",,,\n" + b"5,1,6,,9.0,0.5,,,\n"
    state, seqs, problems = CSV.start(), [], []
    for end in [len(data)] if whole else range(0, len(data) + 100_000, 100_000):
        state, batch, found = CSV.decode(state, data[state.offset : end])
        seqs += batch.seq.tolist()
        problems += found
        assert min(end, len(data)) - state.offset <= MAX_LINE_BYTES, "what is passed over must not be kept"
    assert seqs == [0, 1, 5]
    assert [(p.kind, p.offset) for p in problems] == [("too_large", len(TEXT))]


def test_a_row_exists_only_with_its_newline_as_its_beginnings_parse_too() -> None:
    start = TEXT.index(b"1,1,2,3")
    row = TEXT[start:]
    for length in range(1, len(row)):
        records, problems = decoded(TEXT[: start + length])
        assert len(records) == 1, row[:length]
        assert [(p.kind, p.offset, p.length) for p in problems] == [("truncated", start, length)]
