"""The page while runs grow, come and go, and behind prefixes and tokens."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter

SAMPLES = Path(__file__).parents[2] / "sample_logs"


def write(folder: Path, records: list[Record]) -> FileWriter:
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(folder, FORMATS["json"], FileHeader("run", 0, 1, 1, 0.0, "host", 1), 10**7)
    writer.write(records)
    return writer


def rec(seq: int, **scalars: float) -> Record:
    return Record(seq, 1, seq, 1, 1.7e9 + seq, scalars or {"loss": 1.0 + seq % 3, "grad_norm": 1.0})


@contextmanager
def growing(writer: FileWriter, start: int, make: Callable[[int], Record] = rec) -> Iterator[None]:
    """Ten records a second from ``start`` on, until the block ends."""
    ended = threading.Event()

    def go() -> None:
        seq = start
        while not ended.wait(0.1):
            writer.write([make(seq)])
            seq += 1

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_run_without_any_shown_metric_is_not_asked_for_again_and_again(dash: Any, visit: Any, tmp_path: Path) -> None:
    write(tmp_path / "run", [rec(seq, accuracy=0.5) for seq in range(50)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.runs.size === 1 && msmon.debug.ticks > 2", "the run is known")
    requests: list[str] = []
    page.page.on("request", lambda request: requests.append(request.url))
    page.page.wait_for_timeout(3000)
    assert len(requests) <= 5, "one held request a second"
    assert "No selected run has this metric" in page.ask("document.querySelector('.ms-note').textContent")


def test_a_slow_drag_zooms_while_the_run_grows_and_a_double_click_resets(dash: Any, visit: Any, tmp_path: Path) -> None:
    writer = write(tmp_path / "run", [rec(seq) for seq in range(300)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 1", "the run")
    page.settle()
    box = page.page.locator('.ms-panel[data-panel="loss"] .nsewdrag').first.bounding_box()
    middle = box["y"] + box["height"] / 2
    with growing(writer, 300):
        page.page.mouse.move(box["x"] + 0.3 * box["width"], middle)
        page.page.mouse.down()
        for tenth in range(7):
            page.page.mouse.move(box["x"] + (0.3 + 0.05 * tenth) * box["width"], middle)
            page.page.wait_for_timeout(200)
            if tenth:
                assert page.ask("document.querySelector('.zoombox') !== null"), "the box stays under the pointer"
        page.page.mouse.up()
        page.until("msmon.state.first !== null", "zoomed")
        first, last = page.ask("[msmon.state.first, msmon.state.last]")
        assert 80 < first < 110
        assert 165 < last < 215
        grown = page.ask("[...msmon.runs.values()][0].steps")
        page.until(f"[...msmon.runs.values()][0].steps > {grown}", "the run goes on growing")
        assert page.x_range("loss") == page.x_range("grad_norm") == [first, last]
        page.page.mouse.dblclick(box["x"] + 50, middle)
        page.until("msmon.state.first === null", "everything again")
        page.until(
            "document.querySelector('.js-plotly-plot').layout.xaxis.range[1] > 300", "the axis follows the run again"
        )


def test_the_findings_list_is_left_alone_while_nothing_in_it_changes(dash: Any, visit: Any, tmp_path: Path) -> None:
    writer = write(tmp_path / "run", [rec(seq, loss=math.nan if seq < 5 else 1.0) for seq in range(100)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("document.querySelector('.ms-finding')", "a finding")
    page.ask("window.kept = document.querySelector('.ms-finding')")
    with growing(writer, 100, lambda seq: rec(seq, loss=1.0)):
        page.until("[...msmon.runs.values()][0].steps > 115", "the run grows")
    assert page.ask("document.querySelector('.ms-finding') === window.kept"), "a click on it would get lost"


def test_a_run_that_is_deleted_goes_without_an_error(dash: Any, visit: Any, tmp_path: Path) -> None:
    write(tmp_path / "stays", [rec(seq) for seq in range(50)])
    write(tmp_path / "goes", [rec(seq, loss=math.nan) for seq in range(50)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 2", "both")
    shutil.rmtree(tmp_path / "goes")
    page.until("msmon.traces.size === 1 && msmon.runs.size === 1", "one is gone")
    page.until("document.getElementById('findings').textContent.includes('No findings')", "its findings too")


def test_the_page_lives_below_a_path_prefix(dash: Any, visit: Any) -> None:
    url = dash("--logdir", str(SAMPLES), "--path_prefix", "/tools/msmon").url
    assert url.endswith("/tools/msmon/")
    page = visit(f"{url}?panel=learning_rate")
    page.until("msmon.traces.size === 9", "the runs")
    page.until("document.querySelectorAll('.ms-panel').length === 6", "the added panel, by Dash's own route")
    assert page.page.url.startswith(url)


def test_a_token_opens_the_page_and_leaves_the_address(dash: Any, visit: Any) -> None:
    url = dash("--logdir", str(SAMPLES), "--token", "open sesame").url
    page = visit(f"{url}?token=open%20sesame")
    page.until("msmon.traces.size === 9", "the runs")
    page.ask("msmon.zoom(10, 20)")
    assert "token" not in page.page.url, "a shared link must not give it away"
    assert "first=10" in page.page.url
    page.context.clear_cookies()
    page.until("document.getElementById('status').className.includes('denied')", "the page says what is wrong")
    assert "?token=" in page.ask("document.getElementById('status').textContent")
    page.complaints.clear()  # the browser's words on 401
    page.ask("msmon.debug.errors.length = 0")
    page.context.new_page().goto(f"{url}?token=open%20sesame")
    page.until("document.getElementById('status').className.includes('live')", "and goes on once it is opened again")
    page.complaints.clear()
    page.ask("msmon.debug.errors.length = 0")


def test_no_run_at_all_is_a_view_too(dash: Any, visit: Any) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    page.until("msmon.traces.size === 9", "all runs")
    page.page.locator(".ag-header-select-all input").first.uncheck()
    page.until("msmon.traces.size === 0 && msmon.selectedRuns().length === 0", "none is selected")
    page.settle()
    assert "Select a run" in page.ask("document.querySelector('.ms-note').textContent")
    other = visit(page.page.url)
    other.until("msmon.runs.size === 9 && msmon.debug.ticks > 2", "the link is the view")
    assert other.ask("msmon.selectedRuns().length") == 0


def test_hover_texts_are_wrapped_and_told_in_full(dash: Any, visit: Any) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    advice = "look at the data loader and " * 12 + "the end"
    mark = {"title": "T", "first": 1, "last": 2, "evidence": "e", "causes": ["原" * 100], "advice": [advice]}
    page.page.evaluate("mark => { window.mark = mark; }", mark)
    lines = page.ask("msmon.findingHover(window.mark)").split("<br>")
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith("the end")
    assert sum(line.count("原") for line in lines) == 100
    assert page.ask("msmon.escape('a\\u202eb<i>')") == "ab&lt;i&gt;"
