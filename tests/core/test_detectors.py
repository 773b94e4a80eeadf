"""The article's rules: the table functions, the state machines, and the article's own lines give the same answer."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor_core.detectors import (
    REGISTRY,
    article_advice,
    default_detectors,
    detect_gradient_vanish,
    detect_loss_oscillation,
    detect_step_time_spike,
)
from monitor_core.detectors.non_finite import NonFinite
from monitor_core.detectors.oscillation import LossOscillation
from monitor_core.detectors.spans import Spans
from monitor_core.detectors.step_time import History, StepTimeSpike
from monitor_core.detectors.texts import ADVICE, CAUSES, EVIDENCE, KINDS, describe
from monitor_core.detectors.vanish import GradientVanish

VALUES = st.one_of(
    st.floats(0.1, 3.0),
    st.floats(-2.0, 2.0),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, 1e-300, 1.0]),
    st.none(),
)


def series(name: str, values: list[float | None]) -> pd.DataFrame:
    return pd.DataFrame({name: [math.nan if value is None else value for value in values]}, dtype=float)


@settings(deadline=None, max_examples=200)
@given(st.lists(VALUES, max_size=60), st.integers(2, 8), st.sampled_from([0.3, 0.0, 1.0]))
def test_oscillation_live_equals_the_table_at_every_prefix(
    values: list[float | None], window: int, threshold: float
) -> None:
    machine = LossOscillation(window, threshold)
    live = []
    for step, value in enumerate(values):
        machine.update(step, [value])
        live.append(machine.flag)
    assert list(detect_loss_oscillation(series("loss", values), window, threshold)) == live


def test_an_evaluation_between_two_steps_breaks_no_window() -> None:
    losses = np.random.default_rng(0).uniform(0.2, 2.0, 300)
    alone = detect_loss_oscillation(pd.DataFrame({"loss": losses}))
    assert alone[99:].all(), "the losses are wild enough for every full window"
    rows: list[dict[str, float]] = []
    for step, loss in enumerate(losses.tolist(), 1):
        rows.append({"loss": loss})
        if step % 30 == 0:
            rows.append({"eval_loss": 0.5})
    df = pd.DataFrame(rows)
    flags = detect_loss_oscillation(df)
    assert list(flags[df["loss"].notna()]) == list(alone)
    assert not flags[df["loss"].isna()].any()


@settings(deadline=None, max_examples=200)
@given(st.lists(VALUES, max_size=60))
def test_vanish_live_equals_the_table_at_every_prefix(values: list[float | None]) -> None:
    machine = GradientVanish()
    live = []
    for step, value in enumerate(values):
        machine.update(step, [value])
        live.append(machine.flag)
    assert list(detect_gradient_vanish(series("grad_norm", values))) == live


@settings(deadline=None, max_examples=200)
@given(st.lists(VALUES, max_size=60))
def test_step_time_live_equals_the_table_of_every_prefix(values: list[float | None]) -> None:
    machine = StepTimeSpike()
    for step, value in enumerate(values):
        machine.update(step, [value])
        prefix = detect_step_time_spike(series("step_time", values[: step + 1]))
        assert list(machine.flags()) == list(prefix)
        assert machine.flag == prefix.iloc[-1]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6000), st.floats(-1e6, 1e6))
def test_the_running_median_is_exact(values: list[float], bound: float) -> None:
    history = History()
    for value in values:
        history.add(value)
    assert history.median() == np.median(values)
    assert history.above(bound) == sum(value > bound for value in values)


def test_both_equal_the_articles_own_lines_on_ordinary_data() -> None:
    rng = np.random.default_rng(5)
    df = pd.DataFrame({
        "step": np.arange(4000),
        "loss": np.abs(1 + np.where(np.arange(4000) % 1500 > 900, 0.8, 0.1) * rng.normal(size=4000)),
        "grad_norm": 10 ** rng.uniform(-8, 1, 4000),
        "step_time": rng.lognormal(-3, 0.5, 4000),
    })  # fmt: skip
    ratio = df["loss"].rolling(100).std() / df["loss"].rolling(100).mean()
    assert 200 < (ratio > 0.3).sum() < 3800
    assert (detect_loss_oscillation(df) == (ratio > 0.3)).all()
    assert (detect_gradient_vanish(df) == (df["grad_norm"] < 1e-6)).all()
    assert (detect_step_time_spike(df) == (df["step_time"] > df["step_time"].median() * 2.0)).all()


def test_a_huge_value_that_left_the_window_leaves_no_trace() -> None:
    """pandas carries its rounding error on; an exact sum per window does not."""
    losses = [1.0] * 120 + [1e17] + [1.0 + 0.001 * (i % 2) for i in range(300)]
    flags = detect_loss_oscillation(series("loss", losses))
    assert flags[120:220].all()
    assert not flags[221:].any()


def run(detector: object, columns: list[list[float | None]], steps: range | None = None) -> list[tuple[int, int, bool]]:
    for step, *values in zip(steps or range(len(columns[0])), *columns, strict=True):
        detector.update(step, values)  # type: ignore[attr-defined]
    return [(f.first_step, f.last_step, f.ongoing) for f in detector.findings()]  # type: ignore[attr-defined]


def test_oscillation_needs_five_windows_in_a_row_and_begins_at_the_first() -> None:
    calm, wild = [1.0] * 200, [0.2, 1.8] * 100
    found = run(LossOscillation(), [calm + wild + calm])
    assert len(found) == 1
    first, last, ongoing = found[0]
    flags = detect_loss_oscillation(series("loss", calm + wild + calm))
    assert first == int(np.flatnonzero(flags)[0])
    assert last == int(np.flatnonzero(flags)[-1])
    assert not ongoing
    one_off = [1.0] * 150 + [1.0 + 0.75 * 4] + [1.0] * 3
    assert run(LossOscillation(window=3), [one_off[:152]]) == [], "fewer than five windows"


def test_vanish_speaks_after_more_than_a_hundred_steps() -> None:
    assert run(GradientVanish(), [[1.0] * 10 + [1e-9] * 100]) == []
    assert run(GradientVanish(), [[1.0] * 10 + [1e-9] * 101]) == [(10, 110, True)]


def test_step_time_speaks_after_more_than_ten_steps_and_marks_each_cluster() -> None:
    base = [1.0] * 100
    assert run(StepTimeSpike(), [base + [3.0] * 10]) == []
    slow = base + [3.0] * 6 + base + [4.0] * 5 + base
    assert run(StepTimeSpike(), [slow]) == [(100, 105, False), (206, 210, False)]


def test_live_updates_tell_each_cluster_once() -> None:
    machine = StepTimeSpike()
    told = []
    slow = [1.0] * 100 + [3.0] * 12 + [1.0] * 100 + [3.0] * 2 + [1.0] * 100
    for step, value in enumerate(slow):
        told += [finding.first_step for finding in machine.update(step, [value])]
    assert told == [100, 212]


def test_a_long_run_is_decided_half_by_half_and_takes_no_more_memory() -> None:
    source = np.random.default_rng(3)
    times = source.lognormal(-3, 0.05, 20_000)
    times[[5, 800, 801, 12_000, 19_990]] *= 50
    times[300:330] *= 20
    bounded, free = StepTimeSpike(kept_rows=1000), StepTimeSpike(kept_rows=len(times))
    told: dict[StepTimeSpike, list[int]] = {bounded: [], free: []}
    for step, value in enumerate(times.tolist()):
        for machine in told:
            told[machine] += [finding.first_step for finding in machine.update(step, [value])]
        assert len(bounded._times) == len(bounded._steps) <= 1000
        assert len(bounded._history) <= 1001
    assert told[bounded] == told[free] != []
    marked = [[(f.first_step, f.last_step, f.ongoing) for f in machine.findings()] for machine in (bounded, free)]
    assert marked[0] == marked[1]
    assert len(marked[0]) == 5
    assert bounded._history.median() == pytest.approx(free._history.median(), rel=0.02)
    assert free._history.median() == np.median(times)
    assert len(bounded.flags()) <= 1000
    assert len(free.flags()) == 20_000


def test_a_run_that_overflows_for_ever_takes_no_more_memory() -> None:
    machine = NonFinite()
    told = [machine.update(step, [math.inf, math.inf, 1.0]) for step in range(1000)]
    assert len(machine._overflows) <= 4
    assert sum(map(len, told)) == 1
    assert [(f.first_step, f.last_step, f.evidence["steps"]) for f in machine.findings()] == [(0, 999, 1000)]


def test_spans_are_merged_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitor_core.detectors.spans._MOST", 100)
    spans = Spans(20)
    rows = range(0, 1_000_000, 50)
    for row in rows:
        spans.add(row, row + 1, float(row))
        assert len(spans.items) <= 100
    assert spans.total == sum(span.rows for span in spans.items) == len(rows)
    assert (spans.items[0].first_step, spans.items[-1].last_step) == (1, rows[-1] + 1)
    assert all(one.last_row < other.first_row for one, other in pairwise(spans.items))
    assert [span.peak for span in spans.items] == [span.last_row for span in spans.items]


@pytest.mark.parametrize(
    ("loss", "norm", "overflow", "found"),
    [
        ([1, math.nan, 1], [1, 1, 1], [None] * 3, [(1, 1)]),
        ([1, 1, 1], [1, math.inf, 1], [0, 1, 0], []),
        ([1, 1, 1, 1], [math.inf] * 3 + [1], [1, 1, 1, 0], [(0, 2)]),
        ([0.0, 0.0], [math.nan, math.nan], [None] * 2, [(0, 1)]),
        ([None, None], [None, None], [None, None], []),
    ],
    ids=[
        "nan loss",
        "lone overflow is a probe",
        "three overflows in a row",
        "zero loss with nan norm",
        "nothing measured",
    ],
)
def test_non_finite(loss: list, norm: list, overflow: list, found: list[tuple[int, int]]) -> None:
    assert [item[:2] for item in run(NonFinite(), [loss, norm, overflow])] == found


def test_article_advice_gives_the_articles_advice_as_findings() -> None:
    df = pd.DataFrame(
        {"step": range(400), "loss": [0.2, 1.8] * 200, "grad_norm": [1e-9] * 400, "step_time": [1.0] * 380 + [9.0] * 20}
    )
    found = article_advice(df)
    assert [finding.kind for finding in found] == ["loss_oscillation", "gradient_vanish", "step_time_spike"]
    assert "lower_lr" in found[0].advice
    assert "gradient_checkpointing" in found[1].advice
    assert "check_prefetch" in found[2].advice
    assert article_advice(df.assign(loss=1.0, grad_norm=1.0, step_time=1.0)) == []


def test_texts_are_complete_in_both_languages() -> None:
    for catalogue in (KINDS, EVIDENCE, CAUSES, ADVICE):
        assert set(catalogue["en"]) == set(catalogue["zh"])
    loss: list[float | None] = [0.2, 1.8] * 300 + [math.nan] * 3
    columns = {
        "loss": loss, "grad_norm": [1e-9] * 603, "step_time": [1.0] * 580 + [9.0] * 23, "overflow": [None] * 603,
        "input_signature": [0.0] * 600 + [1.0] * 3,
    }  # fmt: skip
    kinds = set()
    for detector in default_detectors():
        run(detector, [columns[name] for name in detector.inputs])
        for finding in detector.findings():
            kinds.add(finding.kind)
            for language in ("en", "zh"):
                text = describe(finding, language)  # type: ignore[arg-type]
                assert text.title == KINDS[language][finding.kind]
                assert "{" not in text.evidence
                assert set(finding.causes) <= set(CAUSES[language])
                assert set(finding.advice) <= set(ADVICE[language])
    assert kinds == set(KINDS["en"])
    assert len(REGISTRY) == len(kinds)
