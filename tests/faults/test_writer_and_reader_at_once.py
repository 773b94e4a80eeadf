"""One thread or process writes, another reads the same files: nothing lost, nothing twice, nothing altered."""

from __future__ import annotations

import json
import math
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from monitor_core.batch import Batch, concat
from monitor_core.formats import FORMATS, file_number
from monitor_core.formats.base import Format, Problem
from monitor_core.logs import load_monitor_logs
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter

HEADER = FileHeader("run", 0, 1, 1, 0.0, "host", 1)
RECORDS = 100_000
FLUSH_EVERY = 50
LOOK_EVERY = 10_000  # records after which the writer waits for a look: a busy machine may give the reader no turn
METRICS = ("loss", "grad_norm", "step_time", "learning_rate", "throughput")
all_formats = pytest.mark.parametrize("format_", FORMATS.values(), ids=FORMATS)


def training(count: int) -> list[Record]:
    """Records with one value in fifty not finite and one metric in ten steps only."""
    source = random.Random(11)
    odd = (math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324)

    def value() -> float:
        return source.choice(odd) if source.random() < 0.02 else source.random()

    def scalars(step: int) -> dict[str, float]:
        some = {name: value() for name in METRICS}
        return some | {"validation_loss": value()} if step % 10 == 0 else some

    return [Record(seq, 1, seq + 1, 1 + seq // 1000, 1.7e9 + seq / 8, scalars(seq)) for seq in range(count)]


class Follower(threading.Thread):
    """Reads all files of a directory over and over, as the dashboard does, until told that nothing more comes."""

    def __init__(self, directory: Path, format_: Format) -> None:
        super().__init__()
        self.directory = directory
        self.format = format_
        self.states: dict[Path, object] = {}
        self.batches: dict[Path, list[Batch]] = {}
        self.problems: list[Problem] = []
        self.rounds = self.rounds_with_news = 0
        self.writer_done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while True:
                last = self.writer_done.is_set()
                self.rounds_with_news += sum([self.look(path, last) for path in sorted(self.directory.iterdir())]) > 0
                self.rounds += 1
                if last:
                    return
        except BaseException as error:  # noqa: BLE001 - the test's thread hands what went wrong to the test
            self.error = error

    def wait_for_another_round(self) -> None:
        """Until a look that began after this call is through, or the reader has failed."""
        wanted = self.rounds + 2
        while self.rounds < wanted and self.is_alive():
            time.sleep(0.001)

    def look(self, path: Path, final: bool) -> int:
        state = self.states.get(path, self.format.start())
        with path.open("rb") as file:
            file.seek(state.offset)  # type: ignore[attr-defined]
            data = file.read()
        self.states[path], batch, problems = self.format.decode(state, data, final=final)
        self.batches.setdefault(path, []).append(batch)
        self.problems += problems
        return len(batch)

    def table(self) -> Batch:
        in_order = sorted(self.batches, key=lambda path: file_number(path.name) or 0)
        return concat([batch for path in in_order for batch in self.batches[path]])


@all_formats
def test_a_hundred_thousand_records_are_read_while_they_are_written(tmp_path: Path, format_: Format) -> None:
    records = training(RECORDS)
    writer = FileWriter(tmp_path, format_, HEADER, 1_000_000)
    follower = Follower(tmp_path, format_)
    follower.start()
    try:
        for start in range(0, RECORDS, FLUSH_EVERY):
            writer.write(records[start : start + FLUSH_EVERY])
            if start % LOOK_EVERY == 0:
                follower.wait_for_another_round()
        writer.close()
    finally:
        follower.writer_done.set()
        follower.join()
    assert follower.error is None
    assert follower.problems == []
    assert follower.rounds_with_news > 5, "it must have read while the other wrote"
    assert len(writer.files) > 5
    assert all(path.stat().st_size <= 1_000_000 for path in writer.files)
    live = follower.table()
    assert live.seq.tolist() == list(range(RECORDS))
    table = load_monitor_logs(tmp_path)
    assert table.attrs["problems"] == []
    assert table["seq"].tolist() == list(range(RECORDS))
    assert live.step.tolist() == table["step"].tolist() == [record.step for record in records]
    for name in (*METRICS, "validation_loss"):
        wanted = np.array([record.scalars.get(name, math.nan) for record in records])
        for found in (live.columns[name].values, table[name].to_numpy()):
            assert (np.isnan(found) == np.isnan(wanted)).all()
            kept = ~np.isnan(wanted)
            assert (found[kept].view(np.int64) == wanted[kept].view(np.int64)).all(), "bit by bit, -0.0 too"
    assert (live.columns["validation_loss"].mask() == (live.seq % 10 == 0)).all(), "absent is not NaN"


def test_json_load_of_a_finished_flush_always_works_while_another_thread_writes(tmp_path: Path) -> None:
    """Between any two flushes: the lock stands for "not in the middle of one"."""
    lock, done = threading.Lock(), threading.Event()
    counts: list[int] = []
    records = training(3000)
    writer = FileWriter(tmp_path, FORMATS["json"], HEADER, 10_000_000)

    def load() -> None:
        while not done.is_set():
            with lock:
                for path in tmp_path.iterdir():
                    counts.append(len(json.loads(path.read_bytes())))
            time.sleep(0)

    reader = threading.Thread(target=load)
    reader.start()
    for start in range(0, 3000, 10):
        with lock:
            writer.write(records[start : start + 10])
    done.set()
    reader.join()
    assert counts == sorted(counts)
    assert len(json.loads(writer.files[0].read_bytes())) == 3000


CHILD = """
import sys
from pathlib import Path
from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter

directory, name, attempt, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
writer = FileWriter(directory, FORMATS[name], FileHeader("run", 0, 1, attempt, 0.0, "host", 1), limit)
seq = 0
while True:
    batch = [Record(seq + n, attempt, seq + n, None, 0.0, {"loss": (seq + n) / 7}) for n in range(1 + seq % 40)]
    seq = writer.write(batch) + 1
    print(seq, flush=True)
"""


@all_formats
def test_kill_minus_nine_costs_nothing_that_was_acknowledged(
    tmp_path: Path, format_: Format, caplog: pytest.LogCaptureFixture
) -> None:
    source = random.Random(format_.name)
    acknowledged: dict[int, int] = {}
    for attempt in range(1, 5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), format_.name, str(attempt), "20000"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        with child, child.stdout:
            for line in child.stdout:
                acknowledged[attempt] = int(line)
                if acknowledged[attempt] > 300:
                    break
            time.sleep(source.random() * 0.05)
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().split("\n")
            whole = [int(line) for line in lines[:-1] if line]
            acknowledged[attempt] = max([acknowledged[attempt], *whole])
    table = load_monitor_logs(tmp_path)
    for attempt, count in acknowledged.items():
        mine = table[table["attempt"] == attempt]
        assert mine["seq"].tolist() == list(range(len(mine)))
        assert len(mine) >= count > 300
        assert (mine["loss"].to_numpy() == np.arange(len(mine)) / 7).all()
    assert {found.problem.kind for found in table.attrs["problems"]} <= {"truncated"}


LIMITED = """
import resource, sys
from pathlib import Path
from monitor_core.errors import WriteError
from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
writer = FileWriter(Path(sys.argv[1]), FORMATS[sys.argv[2]], FileHeader("run", 0, 1, 1, 0.0, "host", 1), 1_000_000)
pending, errors = [], 0
for seq in range(600):
    pending.append(Record(seq, 1, seq, None, 0.0, {"loss": seq / 7, "grad_norm": seq / 9, "step_time": seq / 11}))
    if seq % 5 == 4:
        try:
            writer.write(pending)
            pending = []
        except WriteError as error:
            errors += "File too large" in str(error)
            pending = pending[error.acknowledged :]
writer.write(pending) if pending else None
print(errors)
"""


@all_formats
def test_a_file_size_limit_of_the_system_ends_files_and_loses_nothing(
    tmp_path: Path, format_: Format, caplog: pytest.LogCaptureFixture
) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", LIMITED, str(tmp_path), format_.name]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(out) > 0, "the limit was reached"
    table = load_monitor_logs(tmp_path)
    assert table["seq"].tolist() == list(range(600))
    assert (table["loss"].to_numpy() == np.arange(600) / 7).all()
