"""What every format promises, run over all three: nothing lost, nothing altered, wherever the bytes are cut."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor_core.errors import FormatError
from monitor_core.formats import FORMATS, file_name, file_number, format_for, parse_file_name
from monitor_core.formats.base import Format, Problem
from monitor_core.limits import MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, NO_NESTED, RESERVED_NAMES, FileHeader, Record

HEADER = FileHeader("run", 0, 1, 1, 1_700_000_000.0, "host", 42)
NAN, INF = math.nan, math.inf
all_formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)

#: Values that have broken loggers before.
AWKWARD = (NAN, INF, -INF, -0.0, 0.0, 1e308, -1e308, 5e-324, 2.2250738585072014e-308, 0.1, 2.0**53 + 2)

#: Six records with everything a record may have or lack.
SIX = (
    Record(0, 1, 1, 1, 1_700_000_000.125, {"loss": 2.5, "grad_norm": 0.5, "step_time": 0.01}),
    Record(1, 1, 2, 1, 1_700_000_001.0, {"loss": NAN, "grad_norm": INF, "step_time": 0.01}),
    Record(2, 1, 3, None, 1_700_000_002.0, {"loss": -INF, "learning_rate": -0.0}),
    Record(3, 1, 2**53 + 1, 2, 1_700_000_003.0, {}),
    Record(4, 1, -7, 2, 1_700_000_004.0, {"loss": 5e-324, "grad_norm": 1e308}, {"input_shapes": [[32, 10], [32]]}),
    Record(5, 2, 1, 0, -1.5, {"step_time": 0.1}),
)


def bits(value: float) -> bytes | str:
    """What tells two measurements apart: every bit, except that all NaNs are one."""
    return "NaN" if math.isnan(value) else struct.pack("<d", value)


def facts(record: Record, *, nested: bool = True) -> tuple[object, ...]:
    """A record as something that ``==`` compares rightly."""
    scalars = {name: bits(value) for name, value in record.scalars.items()}
    return (*record[:4], bits(record.timestamp), scalars, dict(record.nested) if nested else {})


def written(format_: Format, batches: Sequence[Sequence[Record]]) -> list[list[bytes]]:
    """The files that a writer would make, each as its contents after every append."""
    files: list[list[bytes]] = []
    encoder: Any = None
    for batch in batches:
        if encoder is None or not encoder.accepts(batch):
            encoder = format_.encoder(HEADER, batch)
            files.append([encoder.begin()])
        before = files[-1][-1]
        piece = encoder.encode(batch, first=len(files[-1]) == 1)
        files[-1].append(before[: len(before) - encoder.overlap] + piece)
    return files


def one_file(format_: Format, records: Sequence[Record]) -> list[bytes]:
    """Contents of one file after each append of a single record; its first bytes are good for all records."""
    encoder = format_.encoder(HEADER, records)
    contents = [encoder.begin()]
    for number, record in enumerate(records):
        kept = contents[-1][: len(contents[-1]) - encoder.overlap]
        contents.append(kept + encoder.encode([record], first=number == 0))
    return contents


def read(format_: Format, data: bytes, *, final: bool = True) -> tuple[list[Record], tuple[Problem, ...]]:
    _, batch, problems = format_.decode(format_.start(), data, final=final)
    return list(batch.records()), problems


class Reader:
    """Follows a growing file as the dashboard does: unconsumed bytes are passed again."""

    def __init__(self, format_: Format) -> None:
        self.format = format_
        self.state = format_.start()
        self.records: list[Record] = []
        self.problems: list[Problem] = []

    def look(self, contents: bytes, *, final: bool = False) -> None:
        before = self.state.offset
        self.state, batch, problems = self.format.decode(self.state, contents[before:], final=final)
        assert before <= self.state.offset <= len(contents)
        self.records += batch.records()
        self.problems += problems


def expected(format_: Format, records: Sequence[Record]) -> list[tuple[object, ...]]:
    return [facts(record, nested=format_.name != "csv") for record in records]


names = st.one_of(
    st.sampled_from(
        [*ARTICLE_KEYS[1:4], "layer/fc.weight", "=1+1", "-x", "@a", "'q", 'say "hi", you', "a\\nb", "a\nb"]
    ),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
).filter(lambda name: name not in RESERVED_NAMES)
values = st.one_of(st.floats(), st.sampled_from(AWKWARD))
scalars = st.dictionaries(names, values, max_size=5)
shapes = st.dictionaries(
    st.sampled_from(["input_shapes", "extra"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5), st.lists, max_leaves=5
    ),
    max_size=2,
)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    count = draw(st.integers(1, 6))
    return [
        Record(
            seq,
            1 + seq // 4,
            draw(st.integers(-MAX_STEP, MAX_STEP)),
            draw(st.none() | st.integers(0, MAX_STEP)),
            draw(st.floats(allow_nan=False)),
            draw(scalars),
            # JSON readers take a plain value as a metric or as nothing; only lists and objects are nested.
            {name: [value] for name, value in draw(shapes).items()} or NO_NESTED,
        )
        for seq in range(count)
    ]


@all_formats
@given(records=record_lists(), cuts=st.sets(st.integers(1, 5)))
@settings(deadline=None, max_examples=150)
def test_whatever_was_written_is_read_back_bit_by_bit(format_: Format, records: list[Record], cuts: set[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(records)), len(records)]
    batches = [records[a:b] for a, b in itertools.pairwise(places)]
    found: list[Record] = []
    for contents in written(format_, batches):
        some, problems = read(format_, contents[-1])
        assert problems == ()
        found += some
    assert [facts(record) for record in found] == expected(format_, records)


@all_formats
def test_six_literal_records_survive(format_: Format) -> None:
    found, problems = read(format_, one_file(format_, SIX)[-1])
    assert problems == ()
    assert [facts(record) for record in found] == expected(format_, SIX)


def complete(format_: Format, contents: list[bytes], length: int, *, final: bool) -> int:
    """How many records are whole in the first ``length`` bytes of the file, by the sizes it went through."""
    ends = list(map(len, contents[1:]))
    if (
        format_.name == "json"
    ):  # the closing bracket belongs to no record; at a file's end a comma is as good as a newline
        ends = [end - 1 for end in ends] if final else [*ends[:-1], ends[-1] - 1]
    return sum(end <= length for end in ends)


@all_formats
def test_cut_at_every_byte_gives_the_whole_records_and_says_where_the_rest_is(format_: Format) -> None:
    contents = one_file(format_, SIX)
    data = contents[-1]
    for length in range(len(data) + 1):
        whole = complete(format_, contents, length, final=True)
        found, problems = read(format_, data[:length])
        assert [facts(record) for record in found] == expected(format_, SIX[:whole]), length
        for problem in problems:
            assert (problem.kind, problem.offset + problem.length) == ("truncated", length)
        assert len(problems) <= 1
        whole = complete(format_, contents, length, final=False)
        waiting, quiet = read(format_, data[:length], final=False)
        assert [facts(record) for record in waiting] == expected(format_, SIX[:whole])
        assert quiet == (), "an unfinished record of an open file is ordinary"


@all_formats
def test_a_cut_inside_a_record_is_reported_with_its_place(format_: Format) -> None:
    contents = one_file(format_, SIX)
    start = len(contents[2]) - (1 if format_.name == "json" else 0) + 1
    start -= format_.name != "json"
    found, problems = read(format_, contents[-1][: start + 20])
    assert len(found) == 2
    assert [(p.kind, p.offset, p.length) for p in problems] == [("truncated", start, 20)]
    assert "its writer was stopped in mid-write" in problems[0].reason


@all_formats
def test_every_two_way_split_reads_the_same(format_: Format) -> None:
    data = one_file(format_, SIX)[-1]
    for cut in range(len(data) + 1):
        reader = Reader(format_)
        reader.look(data[:cut])
        reader.look(data, final=True)
        assert [facts(record) for record in reader.records] == expected(format_, SIX), cut
        assert reader.problems == []
        assert reader.state.offset == len(data)


@all_formats
def test_one_byte_at_a_time_reads_the_same_and_keeps_little(format_: Format) -> None:
    contents = one_file(format_, SIX)
    longest = max(len(b) - len(a) for a, b in itertools.pairwise(contents)) + len(contents[0]) + 2
    reader = Reader(format_)
    for length in range(len(contents[-1]) + 1):
        reader.look(contents[-1][:length])
        assert length - reader.state.offset <= longest, "consumed bytes must not be passed again"
    assert [facts(record) for record in reader.records] == expected(format_, SIX)
    assert reader.problems == []


@all_formats
@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_a_file_followed_while_it_grows_gives_each_record_once(format_: Format, data: st.DataObject) -> None:
    contents = one_file(format_, SIX)
    reader = Reader(format_)
    for number in sorted(data.draw(st.lists(st.integers(0, 6), max_size=8))):
        now = contents[number]
        reader.look(now[: data.draw(st.integers(min(reader.state.offset, len(now)), len(now)))])
    reader.look(contents[-1], final=True)
    assert [facts(record) for record in reader.records] == expected(format_, SIX)
    assert reader.problems == []


@all_formats
def test_bytes_below_the_offset_never_change_as_the_file_grows(format_: Format) -> None:
    reader = Reader(format_)
    consumed = b""
    for contents in one_file(format_, SIX):
        reader.look(contents)
        assert contents.startswith(consumed)
        consumed = contents[: reader.state.offset]


GARBAGE = {
    "4,096 zero bytes": bytes(4096),
    "random bytes": bytes(range(256)) * 3,
    "a line of text": b"Traceback (most recent call last):\n",
    "a lone quote": b'"',
    "half a record": b'{"seq":3,"step":',
}


@all_formats
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_middle_costs_at_most_the_record_it_touches(format_: Format, garbage: bytes) -> None:
    contents = one_file(format_, SIX)
    place = len(contents[3])
    found, problems = read(format_, contents[-1][:place] + garbage + contents[-1][place:])
    kept = [facts(record) for record in found]
    wanted = expected(format_, SIX)
    assert kept in (wanted, [*wanted[:3], *wanted[4:]])
    if format_.name == "protobuf":
        assert kept == wanted
    assert [(p.kind, p.offset) for p in problems] == [("corrupt", place)]
    assert len(garbage) <= problems[0].length <= len(garbage) + len(contents[4]) - place + 1


@all_formats
@pytest.mark.parametrize("shown", [1, 100])
def test_zeros_at_the_end_that_a_network_file_system_fills_later_are_waited_for(format_: Format, shown: int) -> None:
    contents = one_file(format_, SIX)
    reader = Reader(format_)
    reader.look(contents[3])
    whole = contents[4]
    known = len(contents[3]) + shown
    reader.look(whole[:known] + bytes(max(0, len(whole) - known)))
    assert reader.problems == []
    reader.look(contents[-1], final=True)
    assert [facts(record) for record in reader.records] == expected(format_, SIX)
    assert reader.problems == []


@all_formats
def test_a_file_of_nothing_but_garbage_is_one_problem_and_no_record(format_: Format) -> None:
    found, problems = read(format_, b"no such thing\n" * 1000)
    assert found == []
    assert [(p.kind, p.offset, p.length) for p in problems] == [("corrupt", 0, 14_000)]


@all_formats
def test_an_empty_file_is_ordinary(format_: Format) -> None:
    assert read(format_, b"") == ([], ())


def refused() -> Iterator[Any]:
    good = SIX[0]
    yield pytest.param(good._replace(step=2**63), "a number is out of range", id="step of 64 bits")
    yield pytest.param(good._replace(step=1.5), "a value cannot be written", id="fractional step")
    yield pytest.param(good._replace(seq=-1), "a number is out of range", id="negative seq")
    yield pytest.param(good._replace(epoch=-1), "a number is out of range", id="negative epoch")
    yield pytest.param(good._replace(attempt=2**31), "a number is out of range", id="attempt of 32 bits")
    yield pytest.param(good._replace(scalars={"seq": 1.0}), "names of the record itself", id="reserved name")
    yield pytest.param(good._replace(scalars={"a": None}), "a value cannot be written", id="None")
    yield pytest.param(good._replace(scalars={"a": "high"}), "a value cannot be written", id="text")
    yield pytest.param(good._replace(scalars={"a": 10**400}), "a value cannot be written", id="endless integer")
    yield pytest.param(good._replace(nested={"loss": [1]}), "a name is taken", id="nested name taken")
    many = {f"m{number}": 0.0 for number in range(MAX_METRICS + 1)}
    yield pytest.param(good._replace(scalars=many), f"expected at most {MAX_METRICS}", id="too many metrics")


@all_formats
@pytest.mark.parametrize(("record", "message"), list(refused()))
def test_what_no_reader_would_take_is_refused_before_it_is_acknowledged(
    format_: Format, record: Record, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        format_.encoder(HEADER, [record]).encode([record], first=True)


@pytest.mark.parametrize("name", ["json", "protobuf"])
@pytest.mark.parametrize(
    "value", [object(), ["x" * MAX_LINE_BYTES], {"a": "\ud800"}], ids=["object", "huge", "lone surrogate"]
)
def test_nested_values_that_are_no_json_or_too_large_are_refused(name: str, value: object) -> None:
    record = SIX[0]._replace(nested={"extra": value})
    encoder = FORMATS[name].encoder(HEADER, [record])
    with pytest.raises(FormatError, match="record"):
        encoder.encode([record], first=True)


@all_formats
def test_numpy_scalars_and_bools_are_numbers(format_: Format) -> None:
    scalars = {"a": np.float32(0.5), "b": np.int64(3), "c": True, "d": np.bool_(False), "e": 7, "f": np.float64("nan")}
    record = Record(np.int64(0), 1, np.int32(5), np.int64(2), np.float64(1.5), scalars)  # type: ignore[arg-type]
    ((found,), problems) = read(format_, one_file(format_, [record])[-1])
    assert problems == ()
    assert facts(found) == facts(Record(0, 1, 5, 2, 1.5, {"a": 0.5, "b": 3.0, "c": 1.0, "d": 0.0, "e": 7.0, "f": NAN}))


@all_formats
@pytest.mark.parametrize(
    ("name", "read_as"),
    [
        ("bad \ud800 name", "bad \\ud800 name"),
        ("two\nlines\r", "two\nlines\r"),
        ("a\\nb", "a\\nb"),
        ("\0", "\0"),
        ("\u202eltr", "\u202eltr"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("=cmd|' /C calc'!A0", "=cmd|' /C calc'!A0"),
        ("x" * 10_000, "x" * 10_000),
        ("", ""),
        ("损失", "损失"),
    ],
)
def test_hostile_names_come_back_as_they_were(format_: Format, name: str, read_as: str) -> None:
    record = SIX[0]._replace(scalars={"loss": 1.0, name: 2.0})
    contents = one_file(format_, [record, record._replace(seq=1)])[-1]
    found, problems = read(format_, contents)
    assert problems == ()
    assert [dict(record.scalars) for record in found] == [{"loss": 1.0, read_as: 2.0}] * 2


@all_formats
def test_files_are_told_by_their_names(format_: Format) -> None:
    assert parse_file_name(file_name(7, format_)) == (7, format_)
    assert file_name(7, format_) == f"monitor_00007{format_.suffix}"
    assert file_number(file_name(123_456, format_)) == 123_456
    assert format_for(file_name(1, format_)) is format_


@pytest.mark.parametrize(
    "name",
    ["monitor_1.json", "monitor_00001.txt", "monitor_00001.json.gz", "xmonitor_00001.json", "monitor_00001.json\n",
     "monitor_٠٠٠٠١.json", "monitor_000000001.json", "run.json", "", "monitor_00001.JSON"],
)  # fmt: skip
def test_other_names_are_no_monitor_files(name: str) -> None:
    assert parse_file_name(name) is None
    assert format_for(name) is None
    assert file_number(name) is None


def test_the_registry_has_the_articles_three_formats() -> None:
    assert {name: format_.suffix for name, format_ in FORMATS.items()} == {
        "json": ".json",
        "csv": ".csv",
        "protobuf": ".pb",
    }
