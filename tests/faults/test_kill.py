"""kill -9 of a whole recorder, again and again, at random moments: what a receipt covered is there, once and unaltered.

Random kills rarely hit the interesting byte; ``test_disk_faults.py`` crashes at each of them. Here the real thing runs: threads, three
formats at once, rotation, restarts in the same directory, ``run.json``.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dashboard.ingest.ingester import Ingester
from dashboard.overlays import Overlays
from dashboard.store.table import TableStore
from monitor_core.formats import FORMATS, parse_file_name
from monitor_core.logs import FileProblem, load_monitor_logs, read_file
from monitor_core.manifest import Manifest, from_json

KILLS = 50
RESTARTS = 0.7  # share of the starts that go on in the directory of the one before
LIFE_S = 0.25  # longest life of a child after it was told to go

CHILD = """
import sys
from monitor_core.config import from_mapping
from monitor_core.monitor import Recorder

print("ready", flush=True)
folder = sys.stdin.readline().strip()
one = Recorder(from_mapping({
    "log_dir": folder, "name": "kill", "collect_freq": 4, "max_file_size": 6000,
    "export_format": ["json", "csv", "protobuf"], "buffer_size": 10_000,
}))
one.open()
attempt, step = one._attempt, 0
while True:
    for _ in range(1 + step % 23):
        loss = float("nan") if step % 13 == 0 else (attempt * 1_000_003 + step) / 7
        one.record(step, 1 + step // 100, {"loss": loss, "grad_norm": step / 3}, {"shapes": [[step, 3]]})
        step += 1
    print(attempt, one.flush().last_seq, flush=True)
"""


def child() -> subprocess.Popen[str]:
    """Does its imports while the one before it still lives; waits for the name of its directory then."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def life_and_death(
    process: subprocess.Popen[str], folder: Path, life_s: float, receipts: Counter[tuple[Path, int]]
) -> None:
    """Let it record for ``life_s`` seconds, kill it, note the receipts that arrived."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write(f"{folder}\n")
        process.stdin.close()
        time.sleep(life_s)
        process.kill()
        for line in process.stdout.read().split("\n")[:-1]:
            attempt, last_seq = map(int, line.split())
            receipts[folder, attempt] = last_seq + 1


def manifest(folder: Path) -> Manifest:
    return from_json(json.loads((folder / "run.json").read_text()))


def expected_loss(attempt: int, count: int) -> list[float]:
    return [math.nan if step % 13 == 0 else (attempt * 1_000_003 + step) / 7 for step in range(count)]


def assert_receipts_kept(folder: Path, receipts: dict[int, int], scratch: Path) -> None:
    """Each format for itself has every record that a receipt covered, exactly once."""
    attempts = [attempt.attempt for attempt in manifest(folder).attempts]
    for name, format_ in FORMATS.items():
        alone = scratch / f"{folder.name} {name}"
        alone.mkdir()
        problems: list[FileProblem] = []
        in_files = 0
        for path in folder.iterdir():
            parsed = parse_file_name(path.name)
            if parsed and parsed[1] is format_:
                in_files += len(read_file(path, format_, folder, problems))
                shutil.copyfile(path, alone / path.name)
        table = load_monitor_logs(alone)
        assert in_files == len(table), "no record stands twice, not even in the files"
        assert {found.problem.kind for found in problems} <= {"truncated"}
        assert len(problems) <= len(attempts), "one torn end for each kill"
        assert set(table["attempt"]) <= set(attempts)
        for attempt in attempts:
            mine = table[table["attempt"] == attempt]
            count = len(mine)
            assert count >= receipts.get(attempt, 0)
            assert mine["seq"].tolist() == mine["step"].tolist() == list(range(count))
            assert np.array_equal(mine["loss"], expected_loss(attempt, count), equal_nan=True)
            assert mine["grad_norm"].tolist() == [step / 3 for step in range(count)]
            assert mine["epoch"].tolist() == [1 + step // 100 for step in range(count)]
            if name != "csv" and count:
                assert mine["shapes"].tolist() == [[[step, 3]] for step in range(count)]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_fifty_kills_cost_nothing_that_a_receipt_covered(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    source = random.Random(seed)
    runs = tmp_path / "runs"
    receipts: Counter[tuple[Path, int]] = Counter()
    folders = [runs / "0"]
    waiting = child()
    for _ in range(KILLS):
        now, waiting = waiting, child()
        if source.random() > RESTARTS:
            folders.append(runs / str(len(folders)))
        life_and_death(now, folders[-1], source.random() * LIFE_S, receipts)
    waiting.kill()
    waiting.communicate()
    started = [folder for folder in folders if (folder / "run.json").exists()]
    rotated = sum(parse_file_name(path.name) is not None for folder in started for path in folder.iterdir())
    assert len(receipts) > KILLS / 3, "most lived long enough for a receipt"
    assert max(attempt for _, attempt in receipts) >= 3
    assert rotated > 3 * 3 * KILLS / 3, "files were full and others begun"
    for folder in started:
        assert_receipts_kept(folder, {a: n for (f, a), n in receipts.items() if f == folder}, tmp_path)
        *before, newest = [attempt.status for attempt in manifest(folder).attempts]
        assert set(before) <= {"vanished"}, "the next start has settled them"
        assert newest == "running", "nobody could write anything else"
    assert_the_dashboard_sees_it(runs, started)
    print(f"{sum(receipts.values())} records of {len(receipts)} attempts in {len(started)} runs, {rotated} files")


def assert_the_dashboard_sees_it(root: Path, folders: list[Path]) -> None:
    store = TableStore()
    ingester = Ingester([root], store, Overlays())
    ingester.scan_once()
    runs = {run.name: run for run in ingester.catalog().runs}
    assert set(runs) == {folder.name for folder in folders}, "also one that was killed before its first record"
    assert {(run.status, run.reason) for run in runs.values()} == {("vanished", "its process is gone")}
    snapshot = store.snapshot()
    for key in snapshot.series():
        assert snapshot.extent(key).missing == 0
        assert snapshot.extent(key).rows == len(load_monitor_logs(root / key.run))
