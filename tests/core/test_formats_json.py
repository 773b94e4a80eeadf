"""JSON: the exact bytes, the article's own loader, and what of other writers' arrays is read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from monitor_core.formats import FORMATS
from monitor_core.formats.base import Problem
from monitor_core.limits import MAX_BATCH_CELLS, MAX_LINE_BYTES, MAX_METRICS
from monitor_core.record import FileHeader, Record

JSON = FORMATS["json"]
HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
ONE = Record(0, 1, 1, None, 5.5, {"loss": math.nan, "step_time": 0.25}, {"input_shapes": [[2, 3]]})
TWO = Record(1, 1, 2, 3, 6.0, {"memory_peak": -math.inf, "grad_norm": math.inf})
LINE_ONE = (
    b'{"seq":0,"attempt":1,"step":1,"epoch":null,"timestamp":5.5,"loss":"NaN","step_time":0.25,"grad_norm":null,'
    b'"net_outputs":{"loss":"NaN"},"input_shapes":[[2,3]]}'
)
LINE_TWO = (
    b'{"seq":1,"attempt":1,"step":2,"epoch":3,"timestamp":6.0,"loss":null,"step_time":null,"grad_norm":"Infinity",'
    b'"memory_peak":"-Infinity","net_outputs":{"loss":null}}'
)


def appended(contents: bytes, *records: Record) -> bytes:
    encoder = JSON.encoder(HEADER, records)
    return contents[: len(contents) - encoder.overlap] + encoder.encode(records, first=contents == b"[\n]")


def decoded(data: bytes, *, final: bool = True) -> tuple[list[Record], tuple[Problem, ...]]:
    _, batch, problems = JSON.decode(JSON.start(), data, final=final)
    return list(batch.records()), problems


def test_the_bytes_of_a_growing_file_are_these() -> None:
    contents = JSON.encoder(HEADER, [ONE]).begin()
    assert contents == b"[\n]"
    contents = appended(contents, ONE)
    assert contents == b"[\n" + LINE_ONE + b"\n]"
    contents = appended(contents, TWO)
    assert contents == b"[\n" + LINE_ONE + b",\n" + LINE_TWO + b"\n]"


def test_json_load_works_after_every_append_and_on_an_empty_file() -> None:
    contents = JSON.encoder(HEADER, [ONE]).begin()
    assert json.loads(contents) == []
    for count in range(1, 6):
        contents = appended(contents, ONE._replace(seq=2 * count - 2), TWO._replace(seq=2 * count - 1))
        assert [row["seq"] for row in json.loads(contents)] == list(range(2 * count))


def test_the_articles_parse_check_finds_the_five_keys(tmp_path: Path) -> None:
    path = tmp_path / "monitor_00001.json"
    path.write_bytes(appended(b"[\n]", Record(0, 1, 1, None, 5.5, {})))
    with open(path) as f:  # noqa: PTH123 - the article's own lines
        data = json.load(f)
    assert {"step", "loss", "step_time", "grad_norm", "timestamp"} <= set(data[0].keys())


def test_the_offset_stays_before_the_newline_that_an_append_moves() -> None:
    first = appended(b"[\n]", ONE)
    state, batch, _ = JSON.decode(JSON.start(), first)
    assert len(batch) == 1
    assert first[state.offset :] == b"\n]"
    second = appended(first, TWO)
    assert second[state.offset : state.offset + 3] == b",\n{"
    state, batch, problems = JSON.decode(state, second[state.offset :])
    assert ([record.seq for record in batch.records()], problems) == ([1], ())
    again, batch, _ = JSON.decode(state, second[state.offset :])
    assert (again, len(batch)) == (state, 0)


def test_a_record_exists_only_with_its_newline() -> None:
    whole = b"[\n" + LINE_ONE
    assert decoded(whole, final=False) == ([], ())
    records, problems = decoded(whole)
    assert records == []
    assert [(p.kind, p.offset, p.length) for p in problems] == [("truncated", 2, len(LINE_ONE))]
    assert len(decoded(whole + b"\n", final=False)[0]) == 1


def test_a_bad_line_costs_only_itself() -> None:
    bad = b'{"seq":7,"step":oops},'
    records, problems = decoded(b"[\n" + LINE_ONE + b",\n" + bad + b"\n" + LINE_TWO + b"\n]")
    assert [record.seq for record in records] == [0, 1]
    offset = 2 + len(LINE_ONE) + 2
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", offset, len(bad) + 1)]
    assert problems[0].reason.startswith("expected one JSON record on this line: ")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"5", "an object was expected, found int"),
        (b"null", "an object was expected, found NoneType"),
        (b'{"loss":1}', "whole numbers were expected, found step None"),
        (b'{"step":1.5}', "step 1.5"),
        (b'{"step":true}', "step True"),
        (b'{"step":9223372036854775808}', "step 9223372036854775808"),
        (b'{"step":1,"seq":-1}', "seq -1"),
        (b'{"step":1,"seq":null}', "seq None"),
        (b'{"step":1,"attempt":"1"}', "attempt '1'"),
        (b'{"step":1,"epoch":1.5}', "epoch 1.5"),
        (b'{"step":"' + b"9" * 1000 + b'"}', "step '9999"),
        (b"[" * 1500 + b"NaN", ""),
        (b'{"step":NaN}', "step nan"),
        (b'{"step":1,"loss":\xff\xfe}', ""),
        (b"{" + b",".join(b'"m%d":1' % i for i in range(MAX_METRICS + 20)) + b',"step":1}', "cap of 4096 metrics"),
    ],
)
def test_what_is_no_record_is_a_problem_with_its_reason(line: bytes, reason: str) -> None:
    records, problems = decoded(b"[\n" + line + b",\n" + LINE_TWO + b"\n]")
    assert [record.seq for record in records] == [1]
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", 2, len(line) + 2)]
    assert reason in problems[0].reason
    assert len(problems[0].reason) < 300


def test_adjacent_bad_lines_are_one_problem() -> None:
    _, problems = decoded(b"[\n" + b"oops\n" * 1000 + LINE_ONE + b"\n]")
    assert [(p.offset, p.length) for p in problems] == [(2, 5000)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_line_above_the_cap_is_passed_over(whole: bool) -> None:
    long = b'{"step":1,"x":"' + b"a" * (3 * MAX_LINE_BYTES) + b'"},\n'
    data = b"[\n" + long + LINE_TWO + b"\n]"
    state, records, problems = JSON.start(), [], []
    for end in [len(data)] if whole else range(0, len(data) + 100_000, 100_000):
        state, batch, found = JSON.decode(state, data[state.offset : end])
        records += batch.records()
        problems += found
        assert min(end, len(data)) - state.offset <= MAX_LINE_BYTES, "what is passed over must not be kept"
    assert [record.seq for record in records] == [1]
    assert [(p.kind, p.offset) for p in problems] == [("too_large", 2)]


def test_few_wide_rows_and_many_narrow_ones_cannot_exhaust_memory() -> None:
    wide = b'{"step":0,' + b",".join(b'"m%d":1' % number for number in range(MAX_METRICS)) + b"},\n"
    rows = MAX_BATCH_CELLS // MAX_METRICS + 10
    records, problems = JSON.decode(JSON.start(), b"[\n" + wide + b'{"step":1},\n' * rows)[1:]
    assert len(records) <= MAX_BATCH_CELLS // MAX_METRICS + 1
    assert len(problems) == 1
    assert "values" in problems[0].reason


@pytest.mark.parametrize(
    "text",
    [
        '[{"step": 1, "loss": NaN}, {"step": 2, "loss": Infinity}, {"step": 3, "loss": -Infinity, "x": "a NaN b"}]',
        '[{"step": 1, "loss": NaN},\n {"step": 2, "loss": Infinity},\n {"step": 3, "loss": -Infinity}]\n',
        '[\n  {"step" : 1 , "loss":NaN }\n, {"step": 2, "loss": Infinity}\n,{"step": 3, "loss": -Infinity}\n]\n\n',
        '[\r\n\t{"step": 1, "loss": "NaN"},\r\n\t{"step": 2, "loss": "Infinity"},\r\n{"step":3,"loss":"-Infinity"}\r\n]',
        '{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n{"step": 3, "loss": -Infinity}\n',
        '[{"step":1,"net_outputs":{"loss":NaN}},\n{"step":2,"loss":null,"net_outputs":{"loss":Infinity}},\n'
        '{"step":3,"loss":-Infinity,"net_outputs":{"loss":0}}]',
    ],
    ids=["one line", "record per line", "commas first", "CRLF and tabs", "JSON lines", "net_outputs"],
)
def test_arrays_of_other_writers_are_read(text: str) -> None:
    records, problems = decoded(text.encode())
    assert problems == ()
    assert [(record.seq, record.step) for record in records] == [(0, 1), (1, 2), (2, 3)]
    assert [str(record.scalars["loss"]) for record in records] == ["nan", "inf", "-inf"]
    assert all(math.isnan(record.timestamp) for record in records)


def test_what_python_dumps_on_one_line_is_read_when_the_file_is_final() -> None:
    rows: list[dict[str, Any]] = [{"step": step, "loss": 0.5 * step, "seq": step} for step in range(5)]
    data = json.dumps(rows).encode()
    assert decoded(data, final=False) == ([], ())
    assert [record.scalars["loss"] for record in decoded(data)[0]] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_cut_array_of_another_writer_is_truncated_not_misread() -> None:
    rows, problems = decoded(b'[{"step": 1, "shape": [[1, 2]')
    assert rows == []
    assert [(p.kind, p.offset, p.length) for p in problems] == [("truncated", 0, 29)]


def test_only_numbers_and_their_three_words_are_metrics() -> None:
    line = b'{"step":1,"a":true,"b":false,"c":"nan","d":"text","e":null,"f":12345678901234567890,"g":{"x":"NaN"},"h":"NaN"}\n'
    (record,), problems = decoded(line)
    assert problems == ()
    assert math.isnan(record.scalars["h"])
    assert {name: value for name, value in record.scalars.items() if name != "h"} == {
        "a": 1.0,
        "b": 0.0,
        "f": 12345678901234567890.0,
    }
    assert record.nested == {"g": {"x": "NaN"}}


def test_an_append_between_two_reads_of_one_look_is_understood() -> None:
    """The first read ended at the bracket that the append then replaced."""
    first = appended(b"[\n]", ONE)
    second = appended(first, TWO, TWO._replace(seq=2))
    records, problems = decoded(first + second[len(first) :])
    assert problems == ()
    assert [record.seq for record in records] == [0, 1, 2]


@pytest.mark.parametrize("end", [b",", b",]", b"]", b", ]\n"])
def test_a_whole_record_whose_newline_the_next_append_replaced_still_exists(end: bytes) -> None:
    """A page of the disk may hold the comma and the next one still the old bracket."""
    data = b"[\n" + LINE_ONE + b",\n" + LINE_TWO + end
    records, problems = decoded(data)
    assert problems == ()
    assert [record.seq for record in records] == [0, 1]
