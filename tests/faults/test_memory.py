"""Memory stays under the stated bound whatever the disk does, and what had to go for it is counted everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.ingest.ingester import Ingester
from dashboard.overlays import Overlays
from dashboard.store.base import SeriesKey
from dashboard.store.table import TableStore
from monitor_core.manifest import from_json

ROOT = Path(__file__).parents[2]
RECORDS = {"json": 200_000, "csv": 100_000, "protobuf": 100_000}
LEAST_BYTES = 500  # of memory that any record takes: without a bound the least of these runs would take 50 MB


def measured(disk: str, export_format: str, records: int, folder: Path) -> dict[str, float]:
    """What ``benchmarks/memory_bound.py`` finds, from a fresh heap."""
    script = str(ROOT / "benchmarks" / "memory_bound.py")
    command = [sys.executable, script, "--records", str(records), "--one", disk, export_format, folder]
    out = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    found: dict[str, float] = json.loads(out)
    return found


@pytest.mark.parametrize("export_format", RECORDS)
@pytest.mark.parametrize("disk", ["slow", "blocked", "full"])
def test_a_bad_disk_costs_records_and_not_memory(tmp_path: Path, disk: str, export_format: str) -> None:
    found = measured(disk, export_format, RECORDS[export_format], tmp_path)
    assert found["growth_bytes"] < found["bound_bytes"] < RECORDS[export_format] * LEAST_BYTES
    assert found["lost_before"] == 0
    (attempt,) = from_json(json.loads((tmp_path / "run.json").read_text())).attempts
    assert attempt.status == "finished"
    assert attempt.dropped == found["dropped"] > RECORDS[export_format] / 2
    assert attempt.last_seq == found["records"] - 1
    store = TableStore()
    Ingester([tmp_path], store, Overlays()).scan_once()
    extent = store.snapshot().extent(SeriesKey(".", 0))
    assert extent.rows == found["records"] - found["dropped"]
    assert extent.missing == found["dropped"], "also those at the very end, behind which no record shows the gap"


def test_a_dead_endpoint_costs_neither_and_what_was_not_delivered_is_told(tmp_path: Path) -> None:
    found = measured("endpoint", "protobuf", 200_000, tmp_path)
    assert found["growth_bytes"] < found["bound_bytes"] < 200_000 * LEAST_BYTES
    assert found["dropped"] == 0, "the files have all of them"
    assert found["last_seq"] == found["records"] - 1
    notes = json.loads((tmp_path / "run.json").read_text())["notes"]
    assert any(f"{int(found['records'])} records were not delivered" in note for note in notes)


def test_a_healthy_disk_costs_neither(tmp_path: Path) -> None:
    """Pitfall 3.3 of the article: memory that grows with every step."""
    found = measured("healthy", "json", 100_000, tmp_path)
    assert found["growth_bytes"] < found["bound_bytes"]
    assert found["dropped"] == 0
    assert found["last_seq"] == found["records"] - 1
