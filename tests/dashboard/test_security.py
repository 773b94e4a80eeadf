"""The gate before every route, and the headers of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from dashboard.security import host_name

SAFE = {"Host": "127.0.0.1:8600"}

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


def ask(site: Any, method: str, url: str, **headers: str) -> tuple[int, Any]:
    with site.client.open(url, method=method, headers={**SAFE, **headers}) as answer:
        return answer.status_code, answer.headers


def test_the_gate_stands_before_every_route(site: Any, tmp_path: Path, new_site: Callable[..., Any]) -> None:
    everything = list(routes(site.server))
    assert len(everything) > 8
    locked = new_site(tmp_path, host="0.0.0.0", token="secret")
    for method, url in everything:
        assert ask(site, method, url, Host="evil.example:8600")[0] == 400, url
        assert ask(locked, method, url)[0] == 401, url
        status, headers = ask(site, method, url)
        assert status < 500, (url, status)
        for name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy"):
            assert name in headers, url
        if method != "GET":
            assert ask(site, method, url, **{"Sec-Fetch-Site": "cross-site"})[0] == 403, url
            assert ask(site, method, url, Origin="https://evil.example")[0] == 403, url


def test_the_token_opens_by_address_cookie_or_header(tmp_path: Path, new_site: Callable[..., Any]) -> None:
    client = new_site(tmp_path, host="0.0.0.0", token="sésame").client
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


def test_the_page_runs_no_inline_script_and_loads_nothing_from_elsewhere(site: Any) -> None:
    answer = site.client.get("/", headers=SAFE)
    policy = answer.headers["Content-Security-Policy"]
    assert "'unsafe-eval'" not in policy
    assert "script-src 'self' 'sha256-" in policy
    assert "frame-ancestors 'self'" in policy
    text = answer.get_data(as_text=True)
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert "/mcp" not in "".join(rule.rule for rule in site.server.url_map.iter_rules())


def test_an_unknown_component_package_is_404(site: Any) -> None:
    assert site.client.get("/_dash-component-suites/none/none.js", headers=SAFE).status_code == 404


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


OURS = {
    "output": "extra-panels.children",
    "outputs": {"id": "extra-panels", "property": "children"},
    "inputs": [{"id": "extra", "property": "value", "value": ["learning_rate"]}],
    "changedPropIds": ["extra.value"],
}


@pytest.mark.parametrize(
    "body",
    [
        None, [], "text", {}, {"output": "extra-panels.children"}, OURS | {"inputs": []}, OURS | {"inputs": "x"},
        OURS | {"output": "booted.data"}, OURS | {"output": ["x"]}, OURS | {"inputs": [{"id": "extra", "property": "style"}]},
        OURS | {"inputs": [{"id": "extra", "property": "value", "value": 7}]}, OURS | {"state": [{"id": "x", "property": "y"}]},
        OURS | {"outputs": {"id": "boot", "property": "data"}}, OURS | {"outputs": None}, OURS | {"changedPropIds": [1]},
    ],
)  # fmt: skip
def test_a_callback_request_that_the_page_never_sends_is_400(site: Any, body: object) -> None:
    answer = site.client.post("/_dash-update-component", json=body, headers=SAFE)
    assert (answer.status_code, answer.mimetype) == (400, "text/plain")


def test_the_page_s_own_callback_is_answered(site: Any) -> None:
    answer = site.client.post("/_dash-update-component", json=OURS, headers=SAFE)
    assert answer.status_code == 200
    assert "metric:learning_rate" in answer.get_data(as_text=True)
