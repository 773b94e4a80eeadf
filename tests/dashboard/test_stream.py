"""The live route, the run table and the findings, without a browser."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.query import MAX_SEGMENTS
from monitor_core.record import Record

SAFE = {"Host": "127.0.0.1:8600"}


def rec(seq: int, **scalars: float) -> Record:
    return Record(seq, 1, seq, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


def test_the_live_route_gives_whole_traces_then_only_what_is_new(
    site: Any, tmp_path: Path, write: Callable[..., Any]
) -> None:
    one, two = site.key("one"), site.key("two")
    first = site.live(runs=f"{one},{two}", metrics="loss,grad_norm", columns=2000)
    loss_one, loss_two, norm_two = first["traces"]
    assert (loss_one["run"], loss_one["metric"], loss_one["full"], loss_one["points"]) == (0, 0, 1, 1000)
    assert loss_one["segments"][0]["mean"] == list(range(1000))
    assert loss_two["segments"][0]["max"] == [1e308 if seq % 2 else -1e308 for seq in range(100)], (
        "float64, not float32"
    )
    assert (norm_two["nonfinite"], len(norm_two["segments"][0]["marks"][0]), norm_two["segments"][0]["min"]) == (
        100,
        100,
        [],
    )

    cursors = f"{loss_one['cursor']},{loss_two['cursor']}"
    assert site.live(runs=f"{one},{two}", metrics="loss,grad_norm", columns=2000, cursor=cursors)["traces"] == []
    write(tmp_path / "one" / "more", [])
    for path in (tmp_path / "one").glob("monitor_*.json"):
        grown = path.read_bytes()[:-2] + b',\n{"seq":1000,"attempt":1,"step":1000,"timestamp":1,"loss":-5.0}\n]'
        path.write_bytes(grown)
    site.ingester.scan_once()
    delta = site.live(runs=f"{one},{two}", metrics="loss,grad_norm", columns=2000, cursor=cursors)
    assert [(trace["full"], trace["segments"][0]["min"]) for trace in delta["traces"]] == [(0, [-5.0])]
    assert delta["version"] > first["version"]


def test_a_tick_of_eight_runs_and_five_panels_stays_small(
    tmp_path: Path, new_site: Callable[..., Any], write: Callable[..., Any]
) -> None:
    metrics = ("loss", "grad_norm", "step_time", "memory_peak", "overflow")
    for run in range(8):
        write(tmp_path / str(run), [rec(seq, **dict.fromkeys(metrics, float(seq))) for seq in range(1000)], "protobuf")
    site = new_site(tmp_path)
    keys = ",".join(site.key(str(run)) for run in range(8))
    first = site.live(runs=keys, metrics=",".join(metrics), columns=1000)
    for run in range(8):
        write(tmp_path / str(run), [rec(1000, **dict.fromkeys(metrics, 1.0))], "protobuf")
    site.ingester.scan_once()
    cursors = ",".join(trace["cursor"] for trace in first["traces"][::5])
    tick = site.client.get(
        "/api/live",
        headers=SAFE,
        query_string={"runs": keys, "metrics": ",".join(metrics), "columns": 2000, "cursor": cursors},
    )
    traces = site.decode(tick.data)["traces"]
    assert len(traces) == 40
    assert {(trace["full"], len(trace["segments"][0]["min"])) for trace in traces} == {(0, 1)}
    assert len(tick.data) == 24 + 40 * (24 + 24 + 48) <= 4_000


@pytest.mark.parametrize(
    "query",
    [
        {"columns": "many"}, {"first": "1e9"}, {"runs": "a,b", "cursor": "1.2.3"}, {"runs": "a", "cursor": "1.2"}, {"version": "x"},
        {"runs": ",".join("x" * 4 for _ in range(300))}, {"last": "9" * 30},
    ],
)  # fmt: skip
def test_a_wrong_live_request_is_refused_with_its_reason(site: Any, query: dict[str, str]) -> None:
    answer = site.client.get("/api/live", query_string=query, headers=SAFE)
    assert answer.status_code == 400
    assert "expected" in answer.json["error"] or "at most" in answer.json["error"]


def test_an_unknown_key_shows_nothing_and_paths_are_no_keys(site: Any) -> None:
    for key in ("nothing", "../one", "one", "%2e%2e"):
        assert site.live(runs=key, metrics="loss")["traces"] == []
        assert site.client.get("/api/findings", query_string={"runs": key}, headers=SAFE).status_code == 404


def test_the_run_table_costs_nothing_while_nothing_changes(site: Any) -> None:
    answer = site.client.get("/api/runs", headers=SAFE)
    rows = {row["name"]: row for row in answer.json["runs"]}
    assert (rows["one"]["steps"], rows["one"]["loss"], rows["one"]["rows"]) == (999, 999.0, 1000)
    assert rows["two"]["findings"] == 1
    again = site.client.get("/api/runs", headers={**SAFE, "If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_findings_are_told_in_both_languages(site: Any) -> None:
    for language, title in (("en", "NaN or infinity"), ("zh", "出现 NaN 或无穷")):
        found = site.client.get(
            "/api/findings", query_string={"runs": site.key("two"), "language": language}, headers=SAFE
        ).json
        assert [mark["title"] for mark in found[site.key("two")]["marks"]] == [title]


def test_a_log_that_counts_its_steps_anew_again_and_again_shows_its_newest_stretches(
    tmp_path: Path, write: Callable[..., Any], new_site: Callable[..., Any]
) -> None:
    records = [Record(seq, 1, seq % 10, 1, 1.7e9 + seq, {"loss": float(seq)}) for seq in range(1000)]
    writer = write(tmp_path / "run", records)
    site = new_site(tmp_path)
    key = site.key("run")
    trace = site.live(runs=key, metrics="loss")["traces"][0]
    assert len(trace["segments"]) == MAX_SEGMENTS < 100
    assert trace["segments"][-1]["mean"] == [float(seq) for seq in range(990, 1000)]
    assert trace["points"] == 1000, "the badge says of how many the picture is made"
    assert trace["older_left_out"] == 1, "and that older stretches are not drawn"
    assert site.live(runs=key, metrics="loss", cursor=trace["cursor"])["traces"] == [], "nothing new, nothing sent"
    writer.write([Record(1000, 1, 0, 1, 1.7e9, {"loss": -1.0})])
    site.ingester.scan_once()
    grown = site.live(runs=key, metrics="loss", cursor=trace["cursor"])["traces"][0]
    assert grown["full"] == 1, "every stretch has moved up by one place"
    assert grown["segments"][-1]["mean"] == [-1.0]
    assert grown["segments"][-2]["mean"] == trace["segments"][-1]["mean"]


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_a_last_loss_that_json_cannot_say_is_a_word(
    tmp_path: Path, write: Callable[..., Any], new_site: Callable[..., Any], value: float, word: str
) -> None:
    write(tmp_path / "run", [rec(0), rec(1, loss=value)])
    assert new_site(tmp_path).client.get("/api/runs", headers=SAFE).json["runs"][0]["loss"] == word


def test_counts_of_a_whole_run_equal_those_of_its_parts(
    tmp_path: Path, write: Callable[..., Any], new_site: Callable[..., Any]
) -> None:
    """Whole runs are counted as they grow, parts anew."""
    values = [math.nan if seq % 7 == 0 else math.inf if seq % 11 == 0 else 1.0 for seq in range(300)]
    records = [rec(seq, loss=value) if seq % 3 else rec(seq, other=value) for seq, value in enumerate(values)]
    writer = write(tmp_path / "run", records[:120])
    site = new_site(tmp_path)
    for start in (120, 200):
        writer.write(records[start : start + 100])
        site.ingester.scan_once()
    ask = {"runs": site.key("run"), "metrics": "loss"}
    whole = site.live(**ask)["traces"][0]
    parts = [site.live(**ask, first=first, last=last)["traces"][0] for first, last in ((0, 100), (101, 299))]
    for name in ("points", "nonfinite"):
        assert whole[name] == sum(part[name] for part in parts), name
    assert whole["points"] == 200
