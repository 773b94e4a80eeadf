"""The store alone: bytes per point, appends, windows at every zoom, live changes, files above a budget.

python benchmarks/store_windows.py [--rows 10000000]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dashboard.store.base import SeriesKey, WindowQuery
from dashboard.store.spill import DiskCache
from dashboard.store.table import TableStore
from monitor_core.batch import Batch, Column

KEY = SeriesKey("run", 0)
COLUMNS = 2000


def batches(rows: int, size: int, metrics: int) -> Iterator[Batch]:
    """Steps 0, 1, 2 ... with noise."""
    noise = np.random.default_rng(1).normal(size=rows)
    for start in range(0, rows, size):
        part = np.arange(start, min(rows, start + size))
        ones = np.ones(len(part), np.int64)
        columns = {f"m{number}": Column(noise[part] + number) for number in range(metrics)}
        yield Batch(part, ones, part, 1 + part // 10_000, 1e9 + part * 0.01, columns)


def filled(store: TableStore, given: list[Batch]) -> float:
    """Seconds that the appends took."""
    begin = time.perf_counter()
    for batch in given:
        store.append(KEY, batch)
    return time.perf_counter() - begin


def appends() -> None:
    for size in (1000, 50):
        given = list(batches(1_000_000, size, 10))
        times = []
        for _ in range(3):
            store = TableStore()
            times.append(filled(store, given))
        memory = store.memory_bytes()
        print(
            f"1 M rows x 10 metrics, {size} rows an append: {statistics.median(times):.3f} s, "
            f"{memory.columns_bytes / 1e7:.2f} B per point and {memory.pyramid_bytes / 1e7:.2f} B of pyramid"
        )


def windows(rows: int) -> None:
    store = TableStore()
    for batch in batches(rows, 65_536, 1):
        store.append(KEY, batch)
    snapshot = store.snapshot()
    width = rows
    while width >= COLUMNS:
        times = [
            timed_ms(snapshot, WindowQuery(KEY, "m0", COLUMNS, int(first) + 3, int(first) + width - 1))
            for first in np.linspace(0, rows - width, 9)
        ]
        print(f"{rows} rows, window of {width} steps: {statistics.median(times):.2f} ms, worst {max(times):.2f} ms")
        width //= 8


def timed_ms(snapshot: object, query: WindowQuery) -> float:
    begin = time.perf_counter()
    snapshot.window(query)  # type: ignore[attr-defined]
    return (time.perf_counter() - begin) * 1e3


def changes() -> None:
    store, times = TableStore(), []
    given = list(batches(1_100_000, 50, 1))
    for batch in given[:20_000]:
        store.append(KEY, batch)
    for number, batch in enumerate(given[20_000:20_200]):
        store.append(KEY, batch)
        begin = time.perf_counter()
        store.snapshot().window(WindowQuery(KEY, "m0", COLUMNS, since_rows=1_000_000 + 50 * number))
        times.append((time.perf_counter() - begin) * 1e3)
    print(f"50 new rows behind 1 M, snapshot and change: {statistics.median(times):.2f} ms, worst {max(times):.2f} ms")


def spill() -> None:
    given = list(batches(1_000_000, 1000, 10))
    with tempfile.TemporaryDirectory() as folder:
        store = TableStore()
        seconds = filled(store, given)
        small = TableStore(30 << 20, DiskCache(Path(folder)))
        spilled_s = filled(small, given)
        memory = small.memory_bytes()
        print(
            f"1 M rows x 10 metrics within 30 MiB: {spilled_s:.3f} s instead of {seconds:.3f} s, {memory.spilled_bytes} bytes in files, "
            f"{memory.columns_bytes + memory.pyramid_bytes} in memory"
        )
        for name, one in (("memory", store), ("files", small)):
            snapshot = one.snapshot()
            begin = time.perf_counter()
            snapshot.column(KEY, "m5")
            print(f"a whole column from {name}: {(time.perf_counter() - begin) * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    appends()
    windows(rows)
    changes()
    spill()


if __name__ == "__main__":
    main()
