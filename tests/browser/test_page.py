"""What a person sees and does, read from the page itself."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor_core import load_monitor_logs
from monitor_core.detectors import detect_loss_oscillation
from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_logs"
PANELS = ("loss", "grad_norm", "step_time", "memory", "overflow")


def write(folder: Path, records: list[Record], format_: str = "json") -> FileWriter:
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(folder, FORMATS[format_], FileHeader("run", 0, 1, 1, 0.0, "host", 1), 10**7)
    for start in range(0, len(records), 500):
        writer.write(records[start : start + 500])
    return writer


def rec(seq: int, attempt: int = 1, step: int | None = None, **scalars: float) -> Record:
    return Record(seq, attempt, seq if step is None else step, 1, 1.7e9 + seq, scalars or {"loss": 1.0 + seq % 3})


@pytest.mark.mindspore
def test_five_panels_fill_while_a_real_training_runs(dash: Any, visit: Any, tmp_path: Path, screenshots: Path) -> None:
    page = visit(dash("--logdir", str(tmp_path / "logs")).url)
    page.until("document.getElementById('empty').style.display === ''", "the empty state tells what to do")
    assert "does not exist yet" in page.ask("document.getElementById('empty').textContent")
    page.picture(screenshots, "empty")
    training = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(ROOT / "examples" / "train_mnist_like.py"), "--log-dir", str(tmp_path / "logs" / "live"),
         "--epochs", "3", "--delay-ms", "60", "--loss-scale"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        page.until("msmon.runs.size === 1", "the run appears by itself", 120)
        seen = []
        for least in (20, 80, 150):
            page.until(f"[...msmon.runs.values()][0].steps >= {least}", f"step {least} arrives", 120)
            page.page.wait_for_timeout(500)  # a few frames of drawing; the page of a live run never rests
            lengths = {panel: sum(len(line["x"]) for line in page.lines(panel)) for panel in PANELS}
            seen.append((lengths, training.poll() is None))
        assert all(running for _, running in seen), "the panels filled while the training ran"
        for panel in PANELS:
            assert 0 < seen[0][0][panel] < seen[-1][0][panel], panel
        page.until("[...msmon.runs.values()][0].status === 'running'", "the run is shown as running")
        assert "old" in page.badge("loss")
        page.picture(screenshots, "live")
        assert training.wait(timeout=180) == 0
        page.until("[...msmon.runs.values()][0].status === 'finished'", "its end is shown")
    finally:
        if training.poll() is None:
            training.kill()
            training.wait()
    page.until("[...msmon.traces.values()][0].get('loss').points === 300", "the last step is there")
    df = load_monitor_logs(tmp_path / "logs" / "live")
    page.settle()
    assert (df["overflow"] == 1).any()
    drawn = page.lines("loss")[0]
    assert drawn["x"][-1] in (300, 299.5)
    assert min(drawn["y"]) >= df["loss"].min() and max(drawn["y"]) <= df["loss"].max()


def test_the_overflow_panel_fills_from_a_growing_loss_scale_run(dash: Any, visit: Any, tmp_path: Path) -> None:
    scalars = [
        {"loss": 1.0, "overflow": float(seq % 10 == 0), "loss_scale": 2.0 ** (16 - seq // 100)} for seq in range(400)
    ]
    records = [rec(seq, **scalars[seq]) for seq in range(400)]
    writer = write(tmp_path / "amp", records[:100], "protobuf")
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 1", "the run's traces")
    page.settle()
    first = len(page.lines("overflow")[0]["x"])
    writer.write(records[100:])
    page.until("[...msmon.traces.values()][0].get('overflow').points === 400", "the new steps")
    page.settle()
    line = page.lines("overflow")[0]
    assert len(line["x"]) > first
    shares = [y for y in line["y"] if y is not None]
    assert 0 < sum(shares) / len(shares) < 0.3, "a share, not a block of ones"


def test_overlays_of_the_oscillating_sample_are_at_the_right_steps(dash: Any, visit: Any, screenshots: Path) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    key = page.key("lr_too_high")
    page.until(
        f"msmon.findings['{key}'] && msmon.findings['{key}'].marks.some(m => m.kind === 'non_finite')", "its findings"
    )
    page.settle()
    df = load_monitor_logs(SAMPLES / "lr_too_high")
    flagged = df.loc[detect_loss_oscillation(df), "step"]
    last_oscillation = int(flagged.max())
    spans = [span for span in page.spans("loss") if span["name"] == f"{key}:loss_oscillation"]
    assert spans[-1]["x1"] == last_oscillation + 0.5
    assert spans[0]["x0"] == int(flagged.min()) - 0.5
    bad = [span for span in page.spans("loss") if span["name"] == f"{key}:non_finite"]
    nan_steps = df.loc[~df["loss"].map(math.isfinite), "step"]
    assert (bad[0]["x0"], bad[-1]["x1"]) == (int(nan_steps.min()) - 0.5, int(nan_steps.max()) + 0.5)
    hovers = [text for mark in page.marks("loss", "finding") if mark["run"] == key for text in mark["text"]]
    assert any("Loss oscillates" in text and "learning rate" in text for text in hovers)
    nonfinite = [mark for mark in page.marks("loss", "nonfinite") if mark["run"] == key]
    assert nonfinite[0]["x"][0] == int(nan_steps.min())
    assert f"{len(nan_steps)} non-finite" in page.badge("loss")
    assert "NaN or infinity" in page.ask("document.getElementById('findings').textContent")
    page.picture(screenshots, "samples")


def test_a_finding_leads_to_its_place(dash: Any, visit: Any) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    page.until("document.querySelector('.ms-finding.ms-error')", "the list of findings")
    page.page.click(".ms-finding.ms-error")
    page.until("msmon.state.first !== null", "zoomed")
    mark = page.ask(f"msmon.findings['{page.key('lr_too_high')}'].marks.find(m => m.kind === 'non_finite')")
    assert page.ask("msmon.state.first") < mark["first"] <= mark["last"] < page.ask("msmon.state.last")


def test_three_runs_are_compared_each_in_its_own_colour(dash: Any, visit: Any, screenshots: Path) -> None:
    dashboard = dash("--logdir", str(SAMPLES))
    page = visit(dashboard.url)
    keys = [page.key(f"compare/{name}") for name in ("adam", "momentum", "sgd")]
    colours = page.ask(f"{keys}.map(msmon.colour)")
    again = visit(f"{dashboard.url}?runs={','.join(keys)}")
    again.until("msmon.traces.size === 3", "the three runs")
    again.settle()
    lines = again.lines("loss")
    assert [line["run"] for line in lines] == keys
    assert [line["colour"] for line in lines] == colours, "a run keeps its colour, whatever else is selected"
    assert len(set(colours)) == 3
    for name, line in zip(("adam", "momentum", "sgd"), lines, strict=True):
        df = load_monitor_logs(SAMPLES / "compare" / name)
        assert line["y"][-1] == pytest.approx(df["loss"].iloc[-1], rel=0.6)
        assert max(line["x"]) in (df["step"].max(), df["step"].max() - 0.5)
    again.picture(screenshots, "compare")


def test_selecting_in_the_table_selects_in_the_panels(dash: Any, visit: Any) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    key = page.key("overflow_storm")
    page.until("msmon.traces.size === 9", "all runs are selected at first")
    row = page.page.locator(f'[row-id="{key}"] input[type=checkbox]').first
    row.uncheck()
    page.until(f"!msmon.traces.has('{key}')", "it is gone")
    page.settle()
    assert key not in {line["run"] for line in page.lines("loss")}
    assert key not in page.page.url
    assert page.page.url.count("%2C") + page.page.url.count(",") == 7
    row.check()
    page.until(f"msmon.traces.has('{key}')", "it is back")


def drag(page: Any, panel: str, start: float, stop: float) -> None:
    """Zoom by dragging over a share of a panel's width."""
    box = page.page.locator(f'.ms-panel[data-panel="{panel}"] .nsewdrag').first.bounding_box()
    y = box["y"] + box["height"] / 2
    page.page.mouse.move(box["x"] + start * box["width"], y)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + stop * box["width"], y, steps=8)
    page.page.mouse.up()


def test_zooming_fetches_full_resolution_in_all_panels_and_survives_growth(
    dash: Any, visit: Any, tmp_path: Path, screenshots: Path
) -> None:
    spike = 31_415
    records = [
        rec(seq, loss=50.0 if seq == spike else 1.0 + 0.01 * (seq % 7), grad_norm=1.0, step_time=0.1)
        for seq in range(100_000)
    ]
    writer = write(tmp_path / "long", records, "protobuf")
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until(
        "msmon.traces.size && [...msmon.traces.values()][0].get('loss').points === 100000", "all points are read", 60
    )
    page.settle()
    trace = "[...msmon.traces.values()][0].get('loss')"
    assert page.ask(f"Math.max(...{trace}.segments[0].max)") == 50.0, "the spike is there at full width"
    assert page.ask(f"{trace}.segments[0].first.length") < 2000
    assert "columns of 100,000 points" in page.badge("loss")
    outside = [text for mark in page.marks("loss", "outside") for text in mark["text"]]
    assert any("50" in text for text in outside), "the robust range leaves it out and says so"

    drag(page, "loss", 0.28, 0.345)
    page.until(f"msmon.state.first !== null && {trace}.shift < 5", "finer columns")
    page.settle()
    first, last = page.ask("[msmon.state.first, msmon.state.last]")
    assert first < spike < last
    for panel in ("loss", "grad_norm", "step_time"):
        assert page.x_range(panel) == [first, last], panel
    page.page.goto(f"{page.page.url.split('?')[0]}?first={spike - 100}&last={spike + 100}")
    page.until(f"window.msmon && msmon.debug.ready && msmon.traces.size && {trace}.shift === 0", "single steps")
    page.settle()
    assert page.badge("loss").startswith("all 201 points")
    at = page.ask(f"{trace}.segments[0].max[{trace}.segments[0].first.indexOf({spike})]")
    assert at == 50.0
    writer.write([rec(seq, loss=1.0) for seq in range(100_000, 100_200)])
    page.until("[...msmon.runs.values()][0].steps === 100199", "the run grows")
    page.settle()
    assert page.ask("[msmon.state.first, msmon.state.last]") == [spike - 100, spike + 100]
    page.picture(screenshots, "zoomed")
    page.page.keyboard.press("r")
    page.until("msmon.state.first === null", "key r resets")
    page.until(f"{trace}.points === 100200", "everything again")


def test_a_resumed_run_keeps_its_old_branch_as_a_ghost(dash: Any, visit: Any) -> None:
    dashboard = dash("--logdir", str(SAMPLES))
    page = visit(f"{dashboard.url}?runs={visit(dashboard.url).key('resumed_run')}")
    page.until("msmon.traces.size === 1", "the run")
    page.settle()
    lines = page.lines("loss")
    ghosts = [line for line in lines if line["ghost"]]
    assert len(ghosts) == 1
    assert 300 <= min(ghosts[0]["x"]) <= 303
    assert 457 <= max(ghosts[0]["x"]) <= 459
    for line in lines:
        assert all(a < b for a, b in zip(line["x"], line["x"][1:], strict=False)), "never a zigzag"


def test_language_theme_and_view_live_in_the_address(dash: Any, visit: Any, screenshots: Path) -> None:
    dashboard = dash("--logdir", str(SAMPLES))
    page = visit(dashboard.url)
    assert page.ask("document.documentElement.lang") == "en"
    page.page.click("#language")
    page.until("document.querySelector('.ms-panel-title').textContent === '损失'", "Chinese")
    page.until("document.getElementById('findings').textContent.includes('出现 NaN')", "findings in Chinese")
    page.page.keyboard.press("t")
    page.until("document.documentElement.dataset.theme === 'dark'", "dark")
    page.ask("msmon.zoom(100, 300)")
    page.settle()
    page.picture(screenshots, "dark_zh")
    link = page.page.url
    other = visit(link)
    other.until("document.querySelector('.ms-panel-title').textContent === '损失'", "the link is the view")
    assert other.ask("[msmon.state.first, msmon.state.last, msmon.isDark()]") == [100, 300, True]


def test_smoothing_is_unbiased_and_leaves_the_band_alone(dash: Any, visit: Any, tmp_path: Path) -> None:
    write(tmp_path / "run", [rec(seq, loss=5.0 + (seq % 2)) for seq in range(3000)])
    dashboard = dash("--logdir", str(tmp_path))
    page = visit(f"{dashboard.url}?smoothing=0.9")
    page.until("msmon.traces.size === 1", "the run")
    page.settle()
    line = page.lines("loss")[-1]
    assert all(5.0 <= y <= 6.0 for y in line["y"]), "a biased average would start near zero"
    trace = "[...msmon.traces.values()][0].get('loss').segments[0]"
    assert page.ask(f"[Math.min(...{trace}.min), Math.max(...{trace}.max)]") == [5.0, 6.0]
    before = page.ask(f"[...msmon.smooth({trace}.mean, {trace}.count, 0.9)].slice(0, 50)")
    shorter = page.ask(f"[...msmon.smooth({trace}.mean.slice(0, 60), {trace}.count.slice(0, 60), 0.9)].slice(0, 50)")
    assert before == shorter, "later points never change the past"


def test_an_added_panel_shows_any_metric(dash: Any, visit: Any) -> None:
    dashboard = dash("--logdir", str(SAMPLES))
    page = visit(f"{dashboard.url}?panel=learning_rate&panel=throughput")
    for metric in ("learning_rate", "throughput"):
        page.until(
            f"[...document.querySelectorAll('.ms-panel')].some(p => p.dataset.panel === 'metric:{metric}')", "the card"
        )
        page.page.locator(f'[data-panel="metric:{metric}"]').scroll_into_view_if_needed()
        page.settle()
        page.until(f"[...msmon.traces.values()].some(m => m.has('{metric}'))", "its data")
        page.settle()
        assert page.lines(f"metric:{metric}")


def test_a_corrupt_file_is_named_and_hides_nothing(dash: Any, visit: Any, tmp_path: Path, screenshots: Path) -> None:
    write(tmp_path / "good", [rec(seq) for seq in range(100)])
    path = write(tmp_path / "bad", [rec(seq) for seq in range(100)]).files[0]
    data = bytearray(path.read_bytes())
    data[2000:2100] = b"\x00" * 100
    path.write_bytes(bytes(data))
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 2", "both runs")
    page.settle()
    assert {line["run"] for line in page.lines("loss")} == {page.key("good"), page.key("bad")}
    assert "1 problem" in page.badge("loss")
    assert "missing" in page.badge("loss")
    assert "monitor_00001.json @" in page.ask("document.querySelector('.ms-damage').textContent")
    assert "monitor_00001.json @" in page.ask("document.querySelector('.ms-badge').title")
    page.picture(screenshots, "corrupt")


NAMES = ["<img src=x onerror=alert(1)>", "a%2e%2e&b=c", "\u202egnp.exe", "名字 with spaces", "x" * 200]


def test_hostile_names_are_text(dash: Any, visit: Any, tmp_path: Path, screenshots: Path) -> None:
    for name in NAMES:
        write(tmp_path / name, [rec(seq, **{"loss": 1.0, "<b>metric</b>": 2.0}) for seq in range(20)])
    page = visit(dash("--logdir", str(tmp_path)).url + "?panel=%3Cb%3Emetric%3C%2Fb%3E")
    page.until(f"msmon.traces.size === {len(NAMES)}", "all of them")
    page.settle()
    assert page.ask("document.querySelectorAll('img[src=x], .ms-panel-title b').length") == 0
    assert set(page.ask("[...msmon.runs.values()].map(r => r.name)")) == set(NAMES)
    shown = page.ask("[...document.querySelectorAll('.ms-run')].map(e => e.textContent)")
    assert NAMES[0] in shown
    page.picture(screenshots, "hostile")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nan everywhere", [math.nan] * 50), ("one point", [1.0]), ("all equal", [2.0] * 50), ("huge", [1e308, -1e308] * 25),
        ("negative", [-1.0 - seq / 50 for seq in range(50)]), ("zeros", [0.0] * 50),
    ],
)  # fmt: skip
def test_extreme_values_are_shown_right(dash: Any, visit: Any, tmp_path: Path, name: str, values: list[float]) -> None:
    write(tmp_path / "run", [rec(seq, loss=value, grad_norm=value) for seq, value in enumerate(values)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 1", name)
    page.settle()
    finite = [value for value in values if math.isfinite(value)]
    drawn = [y for line in page.lines("loss") for y in line["y"] if y is not None]
    assert drawn == pytest.approx(finite)
    if not finite:
        assert len(page.marks("loss", "nonfinite")[0]["x"]) == 50
        assert "50 non-finite" in page.badge("loss")
    bounds = page.ask("document.querySelector('.js-plotly-plot').layout.yaxis.range")
    assert bounds is None or all(math.isfinite(bound) for bound in bounds)


def test_a_hidden_tab_sends_nothing_and_a_pause_holds(dash: Any, visit: Any, tmp_path: Path) -> None:
    writer = write(tmp_path / "run", [rec(seq) for seq in range(50)])
    page = visit(dash("--logdir", str(tmp_path)).url)
    page.until("msmon.traces.size === 1", "the run")
    requests: list[str] = []
    page.page.on("request", lambda request: requests.append(request.url))
    page.ask(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true}), window.away = true"
    )
    page.page.wait_for_timeout(1500)
    requests.clear()
    writer.write([rec(seq) for seq in range(50, 100)])
    page.page.wait_for_timeout(1500)
    assert requests == []
    page.ask("window.away = false")
    page.until("[...msmon.traces.values()][0].get('loss').points === 100", "it catches up")
    page.page.keyboard.press("p")
    page.until("document.getElementById('status').className.includes('paused')", "paused")
    writer.write([rec(seq) for seq in range(100, 150)])
    page.page.wait_for_timeout(1500)
    assert page.ask("[...msmon.traces.values()][0].get('loss').points") == 100
    page.page.keyboard.press("p")
    page.until("[...msmon.traces.values()][0].get('loss').points === 150", "it goes on")


def test_a_server_that_goes_away_is_said_and_found_again(dash: Any, visit: Any, tmp_path: Path) -> None:
    write(tmp_path / "run", [rec(seq) for seq in range(50)])
    first = dash("--logdir", str(tmp_path))
    page = visit(first.url)
    page.until("msmon.traces.size === 1", "the run")
    port = first.url.rsplit(":", 1)[1].strip("/")
    first.process.kill()
    first.process.wait()
    page.until("document.getElementById('status').className.includes('offline')", "offline")
    page.complaints.clear()  # the browser's own words on refused connections
    first.process.stdout.close()
    replacement = type(first)("--logdir", str(tmp_path), "--port", port)
    first.process = replacement.process
    write(tmp_path / "more", [rec(seq) for seq in range(20)])
    page.until("document.getElementById('status').className.includes('live') && msmon.runs.size === 2", "back again")
    page.complaints.clear()


def test_keys_and_help(dash: Any, visit: Any) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url)
    page.page.keyboard.press("?")
    page.until("document.getElementById('help-box').style.display === ''", "help")
    page.page.keyboard.press("Escape")
    page.until("document.getElementById('help-box').style.display === 'none'", "closed")
    page.page.keyboard.press("/")
    page.page.keyboard.type("transformer")
    page.until("document.querySelectorAll('.ag-center-cols-container [row-id]').length === 1", "the table is filtered")
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("f")
    page.until("msmon.state.full", "full range")


def test_narrow_screens_have_one_column_and_a_menu(dash: Any, visit: Any, screenshots: Path) -> None:
    page = visit(dash("--logdir", str(SAMPLES)).url, viewport={"width": 390, "height": 844})
    page.until("msmon.traces.size === 9", "the runs")
    page.settle()
    assert page.ask("document.documentElement.scrollWidth") <= 390
    page.picture(screenshots, "narrow")
    page.page.click("#burger")
    page.until("document.querySelector('.ag-row').getBoundingClientRect().left >= 0", "the table slides in")
    page.page.wait_for_timeout(400)
    page.picture(screenshots, "narrow_menu")
