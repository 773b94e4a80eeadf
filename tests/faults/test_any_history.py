"""Any history of writing, dying, copying, deleting and reading, held against a model of what must be there."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from monitor_core.formats import FORMATS, file_name, format_for
from monitor_core.logs import load_monitor_logs
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter


class History(RuleBasedStateMachine):
    """One run directory; the model is the set of (attempt, seq) that readers must find, and those they may."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.attempt = 0
        self.seq = 0
        self.writer: FileWriter | None = None
        self.must: set[tuple[int, int]] = set()
        self.writers: list[FileWriter] = []
        self.may: set[tuple[int, int]] = set()
        self.where: dict[Path, set[tuple[int, int]]] = {}
        logging.getLogger("msmon").disabled = True

    def teardown(self) -> None:
        for writer in self.writers:  # those of dead processes too: the kernel would close their files
            with contextlib.suppress(OSError):
                writer.close()
        logging.getLogger("msmon").disabled = False
        shutil.rmtree(self.directory)

    @rule(name=st.sampled_from(sorted(FORMATS)), size=st.sampled_from([300, 1500, 100_000]))
    def restart(self, name: str, size: int) -> None:
        """A new attempt; the old process is gone without a word."""
        self.attempt += 1
        self.seq = 0
        header = FileHeader("run", 0, 1, self.attempt, 0.0, "host", 1)
        self.writer = FileWriter(self.directory, FORMATS[name], header, size)
        self.writers.append(self.writer)

    @precondition(lambda self: self.writer is not None)
    @rule(count=st.integers(1, 30), extra=st.booleans())
    def write(self, count: int, extra: bool) -> None:
        assert self.writer is not None
        scalars = {"loss": 0.5, "extra": 1.0} if extra else {"loss": 0.5}
        batch = [Record(self.seq + n, self.attempt, self.seq + n, None, 1.0, scalars) for n in range(count)]
        before = {path: path.stat().st_size for path in self.writer.files if path.exists()}
        assert self.writer.write(batch) == self.seq + count - 1
        self.seq += count
        self.must |= {(one.attempt, one.seq) for one in batch}
        for path in self.writer.files:
            if path.exists() and path.stat().st_size != before.get(path):
                self.where.setdefault(path, set()).update((one.attempt, one.seq) for one in batch)

    @precondition(lambda self: self.writer is not None and self.writer.files)
    @rule(length=st.integers(1, 60))
    def die_in_mid_write(self, length: int) -> None:
        """The last append was torn: a record that nobody acknowledged stands there in part."""
        assert self.writer is not None
        path = self.writer.files[-1]
        encoder = self.writer.format.encoder(
            self.writer._header, [torn := Record(self.seq, self.attempt, 0, None, 1.0, {})]
        )
        piece = encoder.encode([torn], first=False)
        data = path.read_bytes() if path.exists() else None
        if data is not None:
            kept = data[: len(data) - encoder.overlap]
            path.write_bytes(kept + piece[: min(length, len(piece) - 4)])
        self.writer = None

    @precondition(lambda self: self.where)
    @rule(data=st.data())
    def copy_a_file(self, data: st.DataObject) -> None:
        """A backup beside the original, as rsync or a person makes it."""
        source = data.draw(st.sampled_from(sorted(self.where)))
        format_ = format_for(source.name)
        assert format_ is not None
        number = 50_000 + len(list(self.directory.iterdir()))
        target = self.directory / file_name(number, format_)
        if not target.exists():
            shutil.copyfile(source, target)
            self.where[target] = set(self.where[source])

    @precondition(lambda self: self.where)
    @rule(data=st.data())
    def delete_a_file(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.where)))
        path.unlink()
        gone = self.where.pop(path)
        self.must -= gone
        self.may |= gone
        for others in self.where.values():
            self.may |= others & gone

    @invariant()
    def readers_find_what_must_be_there_once(self) -> None:
        table = load_monitor_logs(self.directory)
        found = list(zip(table["attempt"].tolist(), table["seq"].tolist(), strict=True))
        assert found == sorted(set(found)), "in order, and each once"
        assert self.must <= set(found) <= self.must | self.may
        assert table["loss"].dropna().eq(0.5).all()
        assert {one.problem.kind for one in table.attrs["problems"]} <= {"truncated"}


History.TestCase.settings = settings(deadline=None, max_examples=50, stateful_step_count=20)
TestAnyHistory = History.TestCase
