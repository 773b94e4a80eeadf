"""examples/monitor_in_notebook.ipynb runs from top to bottom, also where the kernel changes its directory between cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor_core import load_monitor_logs

NOTEBOOK = Path(__file__).parents[2] / "examples" / "monitor_in_notebook.ipynb"

#: A kernel's way: one namespace, the value of a cell's last expression is shown; the directory changes after the first cell.
KERNEL = """
import ast, json, os, sys, warnings
warnings.simplefilter("ignore")
space = {"__name__": "__main__"}
for number, source in enumerate(json.load(sys.stdin)):
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), f"cell {number}", "exec"), space)
    shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space) if last else None
    if number == 0:
        os.chdir(sys.argv[1])
print("SHOWN", shown.to_json(orient="records"))
"""


def cells(kind: str) -> list[str]:
    return [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
        if cell["cell_type"] == kind
    ]


def test_the_file_is_a_notebook_without_outputs_in_both_languages() -> None:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), (
                "committed without what one machine printed"
            )
    for text in cells("markdown"):
        assert any("\u4e00" <= character <= "\u9fff" for character in text), text
        assert any(character.isascii() and character.isalpha() for character in text), text


@pytest.mark.parametrize("moved", [False, True], ids=["kernel stays", "kernel changes its directory"])
def test_the_cells_run_in_order_and_end_with_the_last_rows(tmp_path: Path, moved: bool) -> None:
    start, after = tmp_path / "start", tmp_path / ("after" if moved else "start")
    for folder in {start, after}:
        folder.mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", KERNEL, str(after)], input=json.dumps(cells("code")), cwd=start, capture_output=True,
        text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": str(NOTEBOOK.parents[1])},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert f"msmon: writing to {start / 'logs' / 'notebook'}" in ran.stdout
    assert [path.name for path in tmp_path.rglob("run.json")] == ["run.json"], "one run, where it was said to be"
    df = load_monitor_logs(start / "logs" / "notebook")
    steps, evaluations = df[df["loss"].notna()], df[df["eval_loss"].notna()]
    assert list(steps["step"]) == list(range(1, 97))
    assert list(evaluations["step"]) == [32, 64, 96]
    assert evaluations["eval_loss"].iloc[-1] < evaluations["eval_loss"].iloc[0], "the example learns something"
    shown = json.loads(ran.stdout.split("SHOWN ")[1])
    assert [row["step"] for row in shown] == [93, 94, 95, 96, 96]
    assert shown[-1]["loss"] is None and shown[-1]["eval_loss"] is not None
