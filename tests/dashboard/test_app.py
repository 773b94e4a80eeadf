"""The page as it leaves the server: texts, panels, path prefix, title."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dashboard.app import assets_folder
from dashboard.panels.definitions import PANELS
from dashboard.texts import TEXTS

SAFE = {"Host": "127.0.0.1:8600"}


def test_a_path_prefix_and_a_hostile_title_reach_the_page_safely(tmp_path: Path, new_site: Callable[..., Any]) -> None:
    site = new_site(tmp_path, path_prefix="/tools/msmon/", window_title="</title><script>alert(1)</script>")
    text = site.client.get("/", headers=SAFE).get_data(as_text=True)
    assert 'src="/tools/msmon/assets/10_wire.js' in text
    assert "<script>alert(1)" not in text


def test_texts_have_equal_keys_and_panels_have_titles() -> None:
    assert set(TEXTS["en"]) == set(TEXTS["zh"])
    assert {f"panel_{panel.id}" for panel in PANELS} <= set(TEXTS["en"])
    for key, english in TEXTS["en"].items():
        fields = [sorted(part.split("}")[0] for part in text.split("{")[1:]) for text in (english, TEXTS["zh"][key])]
        assert fields[0] == fields[1], key


def test_every_text_that_the_page_asks_for_exists() -> None:
    code = "".join(path.read_text("utf-8") for path in assets_folder().glob("*.js"))
    asked = set(re.findall(r'msmon\.text\("([a-z_]+)"', code)) | set(
        re.findall(r'dataset\.(?:text|title) = [^;]*?"([a-z_]+)"', code)
    )
    assert len(asked) > 20
    assert asked <= set(TEXTS["en"])


def test_the_prefix_may_be_stripped_by_a_proxy_or_not(tmp_path: Path, new_site: Callable[..., Any]) -> None:
    client = new_site(tmp_path, path_prefix="/tools/msmon/").client
    for path in ("/assets/10_wire.js", "/tools/msmon/assets/10_wire.js"):
        with client.get(path, headers=SAFE) as answer:
            assert answer.mimetype == "text/javascript", "not the page in place of a script"
    assert client.get("/tools/msmon/api/runs", headers=SAFE).json["runs"] == []


def test_the_graphs_send_nothing_to_a_cloud(tmp_path: Path, new_site: Callable[..., Any]) -> None:
    layout = new_site(tmp_path).client.get("/_dash-layout", headers=SAFE).get_data(as_text=True)
    assert layout.count('"type":"Graph"') == len(PANELS)
    assert layout.count('"showSendToCloud":false') == len(PANELS)
