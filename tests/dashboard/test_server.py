"""The server without a browser: gate, headers, live route, catalogue, texts, command line."""

from __future__ import annotations

import math
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask import Flask
from flask.testing import FlaskClient

from dashboard import cli, stream
from dashboard.app import assets_folder, make_server
from dashboard.ingest.ingester import Ingester
from dashboard.overlays import Overlays
from dashboard.panels.definitions import PANELS
from dashboard.security import host_name
from dashboard.settings import Settings
from dashboard.store.table import TableStore
from dashboard.texts import TEXTS
from monitor_core.record import Record

SAFE = {"Host": "127.0.0.1:8600"}


class Site:
    """A server on a log directory, read synchronously."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.store, self.overlays = TableStore(), Overlays()
        self.ingester = Ingester([root], self.store, self.overlays)
        self.server: Flask = make_server(
            Settings((root,), **settings), stream.Api(self.store, self.ingester, self.overlays)
        )
        self.ingester.scan_once()

    @property
    def client(self) -> FlaskClient:
        return self.server.test_client()

    def key(self, name: str) -> str:
        return next(run.key for run in self.ingester.catalog().runs if run.name == name)

    def live(self, **query: object) -> Any:
        return decode(self.client.get("/api/live", query_string=query, headers=SAFE).data)


def decode(data: bytes) -> dict[str, Any]:
    """The wire format again, from its description and not from its code."""
    magic, version, now, findings, traces = struct.unpack_from("<IIdII", data)
    assert magic == int.from_bytes(b"MSM1", "little")
    at, found = 24, []
    for _ in range(traces):
        run, metric, full, shift, _, rows, layout, points, nonfinite, segments, _ = struct.unpack_from(
            "<HHBBHIIddII", data, at
        )
        at += 40
        trace: dict[str, Any] = {"run": run, "metric": metric, "full": full, "cursor": f"{shift}.{rows}.{layout}", "points": points,
                                 "nonfinite": nonfinite, "segments": []}  # fmt: skip
        for _ in range(segments):
            attempt, bins, marks, _, ghost = struct.unpack_from("<IIIId", data, at)
            at += 24
            columns = np.frombuffer(data, "<f8", 6 * bins + 2 * marks, at)
            at += columns.nbytes
            names = ("first", "last", "min", "max", "mean", "count")
            trace["segments"].append({"attempt": attempt, "ghost": ghost, "marks": columns[6 * bins :].reshape(2, marks).tolist()}
                                     | dict(zip(names, columns[: 6 * bins].reshape(6, bins).tolist(), strict=True)))  # fmt: skip
        found.append(trace)
    assert at == len(data)
    return {"version": version, "time": now, "findings": findings, "traces": found}


def rec(seq: int, **scalars: float) -> Record:
    return Record(seq, 1, seq, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


@pytest.fixture
def site(tmp_path: Path, write: Callable[..., Any]) -> Site:
    write(tmp_path / "one", [rec(seq) for seq in range(1000)])
    write(
        tmp_path / "two",
        [rec(seq, loss=1e308 if seq % 2 else -1e308, grad_norm=math.nan) for seq in range(100)],
        "protobuf",
    )
    return Site(tmp_path)


def test_the_live_route_gives_whole_traces_then_only_what_is_new(
    site: Site, tmp_path: Path, write: Callable[..., Any]
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


def test_a_tick_of_eight_runs_and_five_panels_stays_small(tmp_path: Path, write: Callable[..., Any]) -> None:
    metrics = ("loss", "grad_norm", "step_time", "memory_peak", "overflow")
    for run in range(8):
        write(tmp_path / str(run), [rec(seq, **dict.fromkeys(metrics, float(seq))) for seq in range(1000)], "protobuf")
    site = Site(tmp_path)
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
    traces = decode(tick.data)["traces"]
    assert len(traces) == 40
    assert {(trace["full"], len(trace["segments"][0]["min"])) for trace in traces} == {(0, 1)}
    assert len(tick.data) <= 24 + 40 * (40 + 24 + 48)


@pytest.mark.parametrize(
    "query",
    [
        {"columns": "many"}, {"first": "1e9"}, {"runs": "a,b", "cursor": "1.2.3"}, {"runs": "a", "cursor": "1.2"}, {"version": "x"},
        {"runs": ",".join("x" * 4 for _ in range(300))}, {"last": "9" * 30},
    ],
)  # fmt: skip
def test_a_wrong_live_request_is_refused_with_its_reason(site: Site, query: dict[str, str]) -> None:
    answer = site.client.get("/api/live", query_string=query, headers=SAFE)
    assert answer.status_code == 400
    assert "expected" in answer.json["error"] or "at most" in answer.json["error"]


def test_an_unknown_key_shows_nothing_and_paths_are_no_keys(site: Site) -> None:
    for key in ("nothing", "../one", "one", "%2e%2e"):
        assert site.live(runs=key, metrics="loss")["traces"] == []
        assert site.client.get("/api/findings", query_string={"runs": key}, headers=SAFE).status_code == 404


def test_the_run_table_costs_nothing_while_nothing_changes(site: Site) -> None:
    answer = site.client.get("/api/runs", headers=SAFE)
    rows = {row["name"]: row for row in answer.json["runs"]}
    assert (rows["one"]["steps"], rows["one"]["loss"], rows["one"]["rows"]) == (999, 999.0, 1000)
    assert rows["two"]["findings"] == 1
    again = site.client.get("/api/runs", headers={**SAFE, "If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_findings_are_told_in_both_languages(site: Site) -> None:
    for language, title in (("en", "NaN or infinity"), ("zh", "出现 NaN 或无穷")):
        found = site.client.get(
            "/api/findings", query_string={"runs": site.key("two"), "language": language}, headers=SAFE
        ).json
        assert [mark["title"] for mark in found[site.key("two")]["marks"]] == [title]


ROUTES_NEEDING_ARGUMENTS = {
    "/_dash-component-suites/<string:package_name>/<path:fingerprinted_path>": "/_dash-component-suites/dash/deps/react.js",
    "/assets/<path:filename>": "/assets/style.css",
    "/<path:path>": "/anything",
}


def routes(server: Flask) -> Iterator[tuple[str, str]]:
    """Every route of the server with each of its methods."""
    for rule in server.url_map.iter_rules():
        url = ROUTES_NEEDING_ARGUMENTS.get(rule.rule, rule.rule)
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            yield method, url.replace("<path:filename>", "style.css").replace("<path:path>", "x")


def ask(site: Site, method: str, url: str, **headers: str) -> tuple[int, Any]:
    with site.client.open(url, method=method, headers={**SAFE, **headers}) as answer:
        return answer.status_code, answer.headers


def test_the_gate_stands_before_every_route(site: Site, tmp_path: Path) -> None:
    everything = list(routes(site.server))
    assert len(everything) > 8
    locked = Site(tmp_path, host="0.0.0.0", token="secret")
    for method, url in everything:
        assert ask(site, method, url, Host="evil.example:8600")[0] == 400, url
        assert ask(locked, method, url)[0] == 401, url
        status, headers = ask(site, method, url)
        assert status < 500 or method == "POST", (url, status)
        for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"):
            assert name in headers, url
        if method != "GET":
            assert ask(site, method, url, **{"Sec-Fetch-Site": "cross-site"})[0] == 403, url
            assert ask(site, method, url, Origin="https://evil.example")[0] == 403, url


def test_the_token_opens_by_address_cookie_or_header(tmp_path: Path) -> None:
    client = Site(tmp_path, host="0.0.0.0", token="sésame").client
    assert client.get("/api/runs", headers=SAFE).status_code == 401
    assert client.get("/api/runs", headers={**SAFE, "Authorization": "Bearer wrong"}).status_code == 401
    assert client.get(
        "/api/runs", headers={**SAFE, "Authorization": "Bearer sésame".encode().decode("latin-1")}
    ).status_code in (200, 401)
    first = client.get("/api/runs", query_string={"token": "sésame"}, headers=SAFE)
    assert first.status_code == 200
    assert "HttpOnly" in first.headers["Set-Cookie"]
    assert "SameSite=Strict" in first.headers["Set-Cookie"]
    assert client.get("/api/runs", headers=SAFE).status_code == 200, "the cookie"


def test_the_page_runs_no_inline_script_and_loads_nothing_from_elsewhere(site: Site) -> None:
    answer = site.client.get("/", headers=SAFE)
    policy = answer.headers["Content-Security-Policy"]
    assert "'unsafe-eval'" not in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "frame-ancestors 'self'" in policy
    text = answer.get_data(as_text=True)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "/mcp" not in "".join(rule.rule for rule in site.server.url_map.iter_rules())


def test_an_unknown_component_package_is_404(site: Site) -> None:
    assert site.client.get("/_dash-component-suites/none/none.js", headers=SAFE).status_code == 404


def test_a_path_prefix_and_a_hostile_title_reach_the_page_safely(tmp_path: Path) -> None:
    site = Site(tmp_path, path_prefix="/tools/msmon/", window_title="</title><script>alert(1)</script>")
    text = site.client.get("/", headers=SAFE).get_data(as_text=True)
    assert 'src="/tools/msmon/assets/10_wire.js' in text
    assert "<script>alert(1)" not in text


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("127.0.0.1:8600", "127.0.0.1"),
        ("LOCALHOST", "localhost"),
        ("[::1]:80", "::1"),
        ("a.b:1", "a.b"),
        ("", ""),
        ("::1", "::1"),
    ],
)
def test_host_names(header: str, name: str) -> None:
    assert host_name(header) == name


def test_texts_have_equal_keys_and_panels_have_titles() -> None:
    assert set(TEXTS["en"]) == set(TEXTS["zh"])
    assert {f"panel_{panel.id}" for panel in PANELS} <= set(TEXTS["en"])
    for key, english in TEXTS["en"].items():
        fields = [sorted(part.split("}")[0] for part in text.split("{")[1:]) for text in (english, TEXTS["zh"][key])]
        assert fields[0] == fields[1], key


def test_every_text_that_the_page_asks_for_exists() -> None:
    import re

    code = "".join(path.read_text("utf-8") for path in assets_folder().glob("*.js"))
    asked = set(re.findall(r'msmon\.text\("([a-z_]+)"', code)) | set(
        re.findall(r'dataset\.(?:text|title) = [^;]*?"([a-z_]+)"', code)
    )
    assert len(asked) > 20
    assert asked <= set(TEXTS["en"])


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MSMON_")} | environment
    return subprocess.run(
        [sys.executable, "-m", "dashboard.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )


def test_what_the_command_says_about_logdirs_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run_cli("--logdir", str(tmp_path / "file"))
    assert refused.returncode == 2
    assert "is not a directory" in refused.stderr
    assert "give the directory" in refused.stderr
    none = run_cli()
    assert none.returncode == 2
    assert "expected --logdir DIR" in none.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_logdir_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    refused = run_cli("--logdir", str(tmp_path / "locked"))
    assert refused.returncode == 2
    assert "cannot be read" in refused.stderr


def test_an_unreadable_logdir_is_named_for_root_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dashboard.ingest import ingester

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ingester.os, "scandir", refuse)
    assert cli.main(["--logdir", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_inspect_needs_no_server(tmp_path: Path, write: Callable[..., Any]) -> None:
    write(tmp_path / "one", [rec(seq) for seq in range(10)])
    shown = run_cli("--inspect", str(tmp_path))
    assert shown.returncode == 0
    assert "10 records, 0 missing, steps 0 to 9" in shown.stdout
    (tmp_path / "one" / "monitor_00002.pb").write_bytes(os.urandom(3000))
    damaged = run_cli("--inspect", str(tmp_path))
    assert damaged.returncode == 1
    assert "'monitor_00002.pb' at byte 0" in damaged.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bind_all"], "set MSMON_TOKEN"), (["--host", "0.0.0.0"], "set MSMON_TOKEN"), (["--reload-interval", "0"], "seconds above 0"),
        (["--port", "99999"], "expected 0 to 65535"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused = run_cli("--logdir", str(tmp_path), *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_a_busy_port_is_an_error_when_asked_for_and_passed_over_when_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run_cli("--logdir", str(tmp_path), "--port", str(port))
        assert refused.returncode == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in refused.stderr
        found = cli.bind("127.0.0.1", port, fixed=False)
        assert found.getsockname()[1] > port
        found.close()


def test_underscores_and_dashes_are_both_taken() -> None:
    assert cli._dashed(["--bind_all", "--path_prefix=/a_b", "x_y"]) == ["--bind-all", "--path-prefix=/a_b", "x_y"]
