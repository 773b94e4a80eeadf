"""The benchmarks run and print what they promise; their figures are not judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("script", "arguments", "lines"),
    [
        ("training_thread.py", ["--steps", "60", "--rounds", "1"], ["msmon json", "msmon csv", "msmon protobuf"]),
        ("detectors_cost.py", ["--records", "300"], ["article.loss_oscillation", "non_finite", "all"]),
        ("memory_bound.py", ["--records", "2000"], ["healthy", "slow", "blocked", "full", "endpoint"]),
    ],
)
def test_a_benchmark_prints_its_table(script: str, arguments: list[str], lines: list[str]) -> None:
    out = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / script), *arguments],
        capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    for line in lines:
        assert any(row.startswith(line) for row in out.splitlines()), out
