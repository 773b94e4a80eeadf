"""A real job of two processes, started by MindSpore's own launcher: a directory each, one run, communication measured."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.ingest.ingester import Ingester
from dashboard.overlays import Overlays
from dashboard.store.table import TableStore
from monitor_core.logs import load_monitor_logs

GRADIENT_BYTES = 4 * (8 * 16 + 16 + 16 + 1)
STEPS = 8


def job(mode: str, log_dir: Path | None, out: Path) -> list[Any]:
    """Run both processes; returns what each had at its end."""
    out.mkdir()
    launcher = shutil.which("msrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("msrun is not installed beside this Python")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("two_ranks.py")
    root = script.parents[2]
    command = [
        launcher, "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--bind_core=False", "--join=True",
        f"--log_dir={out / 'launcher'}", str(script), mode, str(log_dir or "none"), str(out),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(root), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True, timeout=240, check=False)
    said = "\n".join(
        path.read_text(errors="replace")[-3000:] for path in sorted((out / "launcher").glob("worker_*.log"))
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{said}"
    return [np.load(out / f"rank_{rank}.npz") for rank in (0, 1)]


@pytest.mark.parametrize("mode", ["GRAPH", "PYNATIVE"])
def test_two_ranks_are_one_run_with_communication_measured(mode: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    watched = job(mode, logs / "run", tmp_path / "watched")
    alone = job(mode, None, tmp_path / "alone")
    for one, other in zip(watched, alone, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one.files), "bit by bit"
    for rank in (0, 1):
        check_rank(mode, logs / "run", rank, watched[rank]["losses"])
    both = load_monitor_logs(logs / "run")
    assert sorted(both["rank"].unique()) == [0, 1]
    norms = [both.loc[both["rank"] == rank, "grad_norm"].to_list() for rank in (0, 1)]
    assert norms[0] == norms[1], "the norm is that of the reduced gradients, which all ranks share"
    check_dashboard(logs)


def check_rank(mode: str, run: Path, rank: int, losses: Any) -> None:
    directory = run / f"rank_{rank}"
    df = load_monitor_logs(directory)
    assert df["loss"].to_list() == losses.tolist()
    assert df["comm_bytes"].to_list() == [GRADIENT_BYTES] * STEPS
    manifest = json.loads(((run if rank == 0 else directory) / "run.json").read_text())
    assert (manifest["rank"], manifest["world_size"], manifest["attempts"][0]["status"]) == (rank, 2, "finished")
    assert manifest["attempts"][0]["facts"]["parallel_mode"] == "data_parallel"
    if mode == "PYNATIVE":
        assert (df["comm_time"] > 0).all()
        assert df["comm_bandwidth"].to_list() == pytest.approx((df["comm_bytes"] / df["comm_time"]).to_list())
        assert (df["forward_time"] + df["backward_time"] + df["comm_time"] <= df["step_time"]).iloc[1:].all()
    else:
        assert not {"comm_time", "comm_bandwidth", "forward_time"} & set(df)
        assert "GRAPH mode" in manifest["absent"]["comm_time"]


def check_dashboard(logs: Path) -> None:
    store = TableStore()
    ingester = Ingester([logs], store, Overlays())
    ingester.scan_once()
    (run,) = ingester.catalog().runs
    assert (run.title, run.ranks, run.status, run.problems) == ("two ranks", (0, 1), "finished", ())
    assert [(key.rank, store.snapshot().extent(key).rows) for key in store.snapshot().series()] == [
        (0, STEPS),
        (1, STEPS),
    ]
