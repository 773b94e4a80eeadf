"""docs/metrics.md is what its script writes: two of its columns are trained anew, and every refusal and reason is a real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAINED = ("GRAPH sink", "PYNATIVE loss scale")


def table(path: Path) -> dict[str, dict[str, str]]:
    """Column -> metric -> "yes" or the reason."""
    lines = path.read_text("utf-8").splitlines()
    reasons = dict(re.match(r"(\d+)\. (.*)", line).groups() for line in lines if re.match(r"\d+\. ", line))  # type: ignore[union-attr]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    columns: dict[str, dict[str, str]] = {}
    for place, name in enumerate(rows[0][2:], 2):
        columns[name] = {row[0].strip("`"): reasons.get(row[place], row[place]) for row in rows[2:]}
    return columns


def test_the_table_is_what_trainings_give_today(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "docs" / "make_metrics_table.py"),
        "--into",
        str(tmp_path / "new.md"),
        "--only",
        *TRAINED,
    ]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=200)
    new, written = table(tmp_path / "new.md"), table(ROOT / "docs" / "metrics.md")
    assert set(new) == set(TRAINED)
    assert {name: written[name] for name in new} == new


def test_every_cell_is_measured_or_has_its_reason() -> None:
    written = table(ROOT / "docs" / "metrics.md")
    assert len(written) == 12
    reasons = {text for column in written.values() for text in column.values()}
    assert "yes" in reasons
    assert not any(text.isdigit() or not text or "does not say why" in text for text in reasons)
