"""A dashboard as a process of its own and a real headless Chromium looking at it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install 'msmon[dev]'"
)

ROOT = Path(__file__).parents[2]
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)


class Dash:
    """A running msmon-dash."""

    def __init__(self, *arguments: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MSMON_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dashboard.cli", "--no-browser", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            found = re.search(r"http://\S+", line)
            if found:
                self.url = found.group()
                return
        pytest.fail("msmon-dash ended: " + "".join(said))

    def end(self) -> int:
        """End it as a user does; returns its exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


@pytest.fixture
def dash() -> Iterator[Callable[..., Dash]]:
    started: list[Dash] = []

    def start(*arguments: str) -> Dash:
        started.append(Dash(*arguments))
        return started[-1]

    yield start
    for one in started:
        assert one.end() == 0


@pytest.fixture(scope="session")
def browser(chromium_path: str) -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium_path, args=list(ARGUMENTS))
        yield found
        found.close()


class Page:
    """A page with what tests read from it; no console error and no foreign request is ever accepted."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.context = browser.new_context(
            **{"viewport": {"width": 1440, "height": 1000}, "locale": "en-US", **options}
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._local(request.url))
        self.url = url
        self.page.goto(url)
        self.until("window.msmon && msmon.debug && msmon.debug.ready", "the page is ready")

    def _local(self, url: str) -> None:
        if not re.match(r"(http://127\.0\.0\.1:\d+/|data:|blob:)", url):
            self.complaints.append(f"foreign request: {url}")

    def ask(self, script: str) -> Any:
        """A script's value in the page."""
        return self.page.evaluate(script)

    def until(self, condition: str, what: str, seconds: float = 40) -> None:
        """Wait on the page's state (its policy forbids Playwright's own polling, which evaluates text)."""
        deadline = time.monotonic() + seconds
        while not self.page.evaluate(f"!!({condition})"):
            if time.monotonic() > deadline:
                state = self.page.evaluate("JSON.stringify(window.msmon && msmon.debug)")
                pytest.fail(f"not within {seconds} s: {what}; page says {state}; complaints {self.complaints}")
            self.page.wait_for_timeout(50)

    def settle(self) -> None:
        """Wait until nothing is left to draw."""
        draws = self.ask("msmon.debug.draws")
        while True:
            self.page.wait_for_timeout(300)
            now = self.ask("msmon.debug.draws")
            if now == draws:
                return
            draws = now

    def lines(self, panel: str) -> list[dict[str, Any]]:
        """The main lines of a panel as drawn: run key, x, y, whether a ghost."""
        return self.ask(
            f"""[...document.querySelectorAll('.ms-panel')].find(p => p.dataset.panel === '{panel}').querySelector('.js-plotly-plot').data
            .filter(t => t.meta && t.meta.run && !t.meta.kind && !t.meta.thin)
            .map(t => ({{run: t.meta.run, ghost: t.meta.ghost, x: [...t.x], y: [...t.y], colour: t.line.color}}))"""
        )

    def marks(self, panel: str, kind: str) -> list[dict[str, Any]]:
        """Marks of a kind (finding, nonfinite, outside) in a panel: x and hover texts."""
        return self.ask(
            f"""[...document.querySelectorAll('.ms-panel')].find(p => p.dataset.panel === '{panel}').querySelector('.js-plotly-plot').data
            .filter(t => t.meta && t.meta.kind === '{kind}').map(t => ({{run: t.meta.run, x: [...t.x], text: [...t.text]}}))"""
        )

    def spans(self, panel: str) -> list[dict[str, Any]]:
        """Finding spans of a panel."""
        return self.ask(
            f"""[...document.querySelectorAll('.ms-panel')].find(p => p.dataset.panel === '{panel}').querySelector('.js-plotly-plot')
            .layout.shapes.map(s => ({{name: s.name, x0: s.x0, x1: s.x1}}))"""
        )

    def x_range(self, panel: str) -> list[float]:
        """Steps that a panel's x axis shows."""
        return self.ask(
            f"""[...document.querySelectorAll('.ms-panel')].find(p => p.dataset.panel === '{panel}').querySelector('.js-plotly-plot')
            .layout.xaxis.range"""
        )

    def badge(self, panel: str) -> str:
        """Text of a panel's honesty badge."""
        return self.ask(
            f"[...document.querySelectorAll('.ms-panel')].find(p => p.dataset.panel === '{panel}').querySelector('.ms-badge').textContent"
        )

    def key(self, name: str) -> str:
        """A run's key."""
        found = self.ask(f"[...msmon.runs.values()].filter(r => r.name === {name!r}).map(r => r.key)")
        assert len(found) == 1, name
        return found[0]

    def picture(self, folder: Path, name: str) -> None:
        """Keep a screenshot for people to look at."""
        self.page.screenshot(path=str(folder / f"{name}.png"))

    def close(self) -> None:
        """The end of every test: nothing was complained about."""
        errors = self.ask("msmon.debug.errors")
        at_once = self.ask("msmon.debug.mostInFlight")
        self.context.close()
        assert (self.complaints, errors) == ([], [])
        assert at_once <= 1, "two pulls at the same time"


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Page]]:
    pages: list[Page] = []

    def open_(url: str, **options: Any) -> Page:
        pages.append(Page(browser, url, **options))
        return pages[-1]

    yield open_
    for page in pages:
        page.close()
