"""Helpers for tests of the reading half: records, runs on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter


def record(seq: int, *, attempt: int = 1, step: int | None = None, **scalars: float) -> Record:
    return Record(seq, attempt, seq if step is None else step, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


@pytest.fixture
def write() -> Callable[..., FileWriter]:
    """Write records to a directory in one of the formats and return the writer, still open."""

    def run(
        folder: Path, records: Sequence[Record], format_: str = "json", size: int = 10**7, **more: Any
    ) -> FileWriter:
        folder.mkdir(parents=True, exist_ok=True)
        writer = FileWriter(folder, FORMATS[format_], FileHeader("run", 0, 1, 1, 0.0, "host", 1), size, **more)
        for start in range(0, len(records), 50):
            writer.write(records[start : start + 50])
        return writer

    return run
