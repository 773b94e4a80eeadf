"""Each sample run tells its story; none of them names the machine it was made on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from monitor_core.detectors import article_advice, detect_loss_oscillation
from monitor_core.formats import parse_file_name
from monitor_core.logs import load_monitor_logs

SAMPLES = Path(__file__).parents[1] / "sample_logs"
RUNS = sorted(path.parent.relative_to(SAMPLES).as_posix() for path in SAMPLES.rglob("run.json"))


def kinds(run: str) -> set[str]:
    return {finding.kind for finding in article_advice(load_monitor_logs(SAMPLES / run))}


def test_there_are_six_stories_in_all_three_formats_under_five_megabytes() -> None:
    stories = {
        "healthy_transformer",
        "lr_too_high",
        "overflow_storm",
        "data_loader_stalls",
        "vanishing_gradients",
        "resumed_run",
    }
    assert stories <= set(RUNS)
    files = [path for path in SAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
    assert {found[1].name for path in files if (found := parse_file_name(path.name))} == {"json", "csv", "protobuf"}


@pytest.mark.parametrize("run", RUNS)
def test_a_sample_is_whole_and_says_nothing_about_its_machine(run: str) -> None:
    df = load_monitor_logs(SAMPLES / run)
    assert df.attrs["problems"] == []
    assert 400 <= len(df) <= 2000
    assert (df.groupby("attempt")["seq"].max() + 1 == df.groupby("attempt").size()).all(), "no gap"
    text = (SAMPLES / run / "run.json").read_text("utf-8")
    manifest = json.loads(text)
    assert manifest["config"]["log_dir"] == f"sample_logs/{run}"
    assert {(attempt["host"], attempt["pid"]) for attempt in manifest["attempts"]} == {("sample", None)}
    assert manifest["versions"]["mindspore"].startswith("2.")
    assert "/root" not in text and "/home" not in text


def test_the_healthy_run_learns_and_is_rotated() -> None:
    df = load_monitor_logs(SAMPLES / "healthy_transformer")
    assert df["loss"].iloc[-50:].mean() < 0.5 * df["loss"].iloc[:10].mean()
    assert len(list((SAMPLES / "healthy_transformer").glob("monitor_*.json"))) >= 3
    assert np.isfinite(df[["loss", "grad_norm"]]).all(axis=None)


def test_too_high_a_rate_oscillates_and_then_is_nan() -> None:
    df = load_monitor_logs(SAMPLES / "lr_too_high")
    flagged = df.loc[detect_loss_oscillation(df), "step"]
    assert (flagged > 300).sum() > 100
    assert df["loss"].iloc[-50:].isna().all()
    assert flagged.max() < df.loc[df["loss"].isna(), "step"].min()
    assert "loss_oscillation" in kinds("lr_too_high")


def test_the_overflow_storm_collapses_the_scale_and_probing_does_not() -> None:
    df = load_monitor_logs(SAMPLES / "overflow_storm")
    overflow = df["overflow"].to_numpy()
    storm = overflow[195:225]
    assert storm.sum() >= 15
    assert 3 <= overflow[20:190].sum() <= 8
    assert df["loss_scale"].iloc[190] / df["loss_scale"].iloc[225] >= 8
    assert df.loc[df["overflow"] == 1, "grad_norm"].isna().all()


def test_the_stalls_are_waiting_for_data() -> None:
    df = load_monitor_logs(SAMPLES / "data_loader_stalls")
    slow = df[df["step_time"] > 0.2].iloc[1:]
    assert len(slow) > 10
    assert (slow["data_wait_time"] / slow["step_time"]).median() > 0.9
    assert "step_time_spike" in kinds("data_loader_stalls")
    assert df["input_shapes"].iloc[0] == [[64, 32], [64]]


def test_gradients_vanish() -> None:
    df = load_monitor_logs(SAMPLES / "vanishing_gradients")
    assert df["grad_norm"].max() < 1e-6
    assert "gradient_vanish" in kinds("vanishing_gradients")


def test_the_resumed_run_goes_back_and_says_why() -> None:
    df = load_monitor_logs(SAMPLES / "resumed_run")
    assert list(df.groupby("attempt")["step"].agg(["min", "max"]).itertuples(index=False, name=None)) == [
        (1, 459),
        (301, 800),
    ]
    attempts = json.loads((SAMPLES / "resumed_run" / "run.json").read_text("utf-8"))["attempts"]
    assert [(attempt["status"], attempt["reason"]) for attempt in attempts] == [
        ("failed", "RuntimeError"),
        ("finished", None),
    ]
    seam = df[df["attempt"] == 2]["loss"].iloc[:20].mean()
    assert math.isclose(
        seam, df[(df["attempt"] == 1) & (df["step"] > 280) & (df["step"] <= 300)]["loss"].mean(), rel_tol=0.3
    )
