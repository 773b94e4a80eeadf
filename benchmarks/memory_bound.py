"""How much memory recording takes, whatever the disk does: python benchmarks/memory_bound.py [--records N]

Each line is a process of its own that records at ``collect_freq=1`` as fast as it can, 10 scalars a step, on a disk that is healthy, slow
(1 MB/s), blocked or full, or healthy with an ``http_endpoint`` that refuses every connection. The growth is the largest resident size
seen, less that before the first of these records.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import logging
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from monitor_core.config import from_mapping
from monitor_core.limits import memory_bound_bytes
from monitor_core.monitor import Recorder
from monitor_core.writers.file import FileSystem

ENDPOINT = "endpoint"
DISKS = ("healthy", "slow", "blocked", "full", ENDPOINT)
FORMATS = ("json", "csv", "protobuf")
NAMES = (
    "loss", "grad_norm", "step_time", "data_wait_time", "throughput", "learning_rate", "loss_scale", "overflow",
    "memory_peak", "host_memory",
)  # fmt: skip
BUFFER_RECORDS = 4096
WARM_UP_RECORDS = 6000
SLOW_BYTES_PER_S = 1e6
FLUSH_EVERY = 1000  # records; while the disk is healthy the loop waits for it, as a training of any real pace does
LOOK_EVERY = 2000  # records between two looks at the resident size


class Disk(FileSystem):
    """Healthy until ``kind`` is set."""

    kind = "healthy"

    def __init__(self) -> None:
        self.unblocked = threading.Event()

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        if self.kind == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.kind == "blocked":
            self.unblocked.wait()
        if self.kind == "slow":
            time.sleep(len(data) / SLOW_BYTES_PER_S)
        return super().write_at(descriptor, data, offset)


def measure(disk_kind: str, export_format: str, records: int, folder: Path) -> dict[str, float]:
    """Record in this process. A blocked disk goes on when all is recorded; a full one stays full."""
    disk, value = Disk(), random.Random(0).random
    config = {"log_dir": folder, "name": "memory", "export_format": export_format, "collect_freq": 1}
    pushing = disk_kind == ENDPOINT
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))  # and nobody listens
    endpoint = f"http://127.0.0.1:{dead.getsockname()[1]}" if pushing else None
    settings = from_mapping({**config, "buffer_size": BUFFER_RECORDS, "http_endpoint": endpoint})
    recorder = Recorder(settings, file_system=disk)
    recorder.open()
    for step in range(WARM_UP_RECORDS):
        recorder.record(step, 1, {name: value() for name in NAMES})
        if step % FLUSH_EVERY == 0:
            recorder.flush()
    lost_before = recorder.flush().dropped
    gc.collect()
    process = psutil.Process()
    disk.kind = disk_kind
    before = peak = process.memory_info().rss
    begun = time.perf_counter()
    for step in range(WARM_UP_RECORDS, WARM_UP_RECORDS + records):
        recorder.record(step, 1, {name: value() for name in NAMES})
        if step % FLUSH_EVERY == 0 and disk_kind in ("healthy", ENDPOINT):
            recorder.flush()
        if step % LOOK_EVERY == 0:
            peak = max(peak, process.memory_info().rss)
    seconds = time.perf_counter() - begun
    disk.unblocked.set()
    receipt = recorder.close()
    dead.close()
    return {
        "growth_bytes": max(peak, process.memory_info().rss) - before,
        "bound_bytes": memory_bound_bytes(BUFFER_RECORDS, pushing=pushing), "seconds": seconds, "records": WARM_UP_RECORDS + records,
        "lost_before": lost_before, "dropped": receipt.dropped, "last_seq": receipt.last_seq,
    }  # fmt: skip


def in_a_process_of_its_own(disk_kind: str, export_format: str, records: int, folder: Path) -> dict[str, float]:
    """The same, from a fresh heap."""
    command = [sys.executable, __file__, "--records", str(records), "--one", disk_kind, export_format, str(folder)]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--one", nargs=3, metavar=("DISK", "FORMAT", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        logging.disable(logging.ERROR)
        disk_kind, export_format, folder = arguments.one
        print(json.dumps(measure(disk_kind, export_format, arguments.records, Path(folder))))
        return
    print(f"{arguments.records} records, 10 scalars each, collect_freq=1, buffer_size={BUFFER_RECORDS}")
    print(f"{'disk':10}{'format':10}{'growth MB':>10}{'bound MB':>10}{'written':>10}{'dropped':>10}{'us/record':>11}")
    for disk_kind in DISKS:
        for export_format in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                found = in_a_process_of_its_own(disk_kind, export_format, arguments.records, Path(folder))
            print(
                f"{disk_kind:10}{export_format:10}{found['growth_bytes'] / 1e6:10.1f}{found['bound_bytes'] / 1e6:10.1f}"
                f"{found['records'] - found['dropped']:10.0f}{found['dropped']:10.0f}"
                f"{found['seconds'] / arguments.records * 1e6:11.2f}"
            )


if __name__ == "__main__":
    main()
