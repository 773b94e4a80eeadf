"""The one thread that reads: wake by hint or timer, scan, read in turns, publish."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dashboard.ingest.catalog import Catalog, RootProblem, RunProblem
from dashboard.ingest.discover import Found, FoundRun, discover
from dashboard.ingest.run_reader import RunReader
from dashboard.ingest.watch import Watcher
from dashboard.overlays import Overlays
from dashboard.store.base import Store
from monitor_core.clock import Clock, SystemClock

_log = logging.getLogger("msmon")

ROUND_S = 0.1  # reading between two publications: the page sees progress while large files load
MISSED_SCANS = 2  # a directory that is being replaced is away for a moment
SETTLE_S = 0.02  # after a hint: lets a burst of writes arrive, well below what the eye sees


class Ingester:
    """Follows all runs of some log directories into a store."""

    def __init__(
        self,
        roots: Sequence[Path],
        store: Store,
        overlays: Overlays,
        reload_interval_s: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self._roots = [root.absolute() for root in roots]
        self._store = store
        self._overlays = overlays
        self._interval_s = reload_interval_s
        self._clock = clock or SystemClock()
        self._readers: dict[tuple[Path, str], RunReader] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._watcher = Watcher(self._roots, self._wake)
        self._changed = threading.Condition()
        # From a random number on, so that a page notices a restarted server: its versions are others altogether.
        self._catalog = Catalog(version=secrets.randbits(30))
        self._thread: threading.Thread | None = None
        self._root_problems: list[RootProblem] = []
        self._directory_problems: list[RunProblem] = []

    def start(self) -> None:
        """Begin following, in a background thread."""
        self._thread = threading.Thread(target=self._run, name="msmon-ingest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it is gone."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._watcher.stop()

    def scan_once(self) -> None:
        """Scan and read everything that is there now, in the calling thread; for tools and tests."""
        self._scan()
        while self._read_round():
            pass
        while self._overlays.advance(self._store.snapshot()):
            pass
        self._publish()

    def catalog(self) -> Catalog:
        """The newest state; immutable."""
        return self._catalog

    def wait(self, version: int, timeout_s: float) -> int:
        """Block until the catalogue is another than ``version``, at most ``timeout_s``; returns its version."""
        with self._changed:
            self._changed.wait_for(lambda: self._catalog.version != version or self._stopping.is_set(), timeout_s)
            return self._catalog.version

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                self._watcher.tend()
                self._follow()
            except Exception:  # noqa: BLE001 - the thread must outlive any defect; the page would silently stand still
                _log.exception("reading failed and is tried again")
            if self._wake.wait(self._interval_s) and not self._stopping.is_set():
                time.sleep(SETTLE_S)

    def _follow(self) -> None:
        self._scan()
        while not self._stopping.is_set():
            more = self._read_round()
            more_findings = self._overlays.advance(self._store.snapshot())
            self._publish()
            if not (more or more_findings):
                return

    def _scan(self) -> None:
        self._root_problems, self._directory_problems = [], []
        seen: set[tuple[Path, str]] = set()
        now = self._clock.wall()
        for root in self._roots:
            found = self._discover(root)
            for run in found.runs:
                identity = (root, run.name)
                seen.add(identity)
                reader = self._readers.get(identity)
                if reader is None:
                    reader = self._readers[identity] = RunReader(root, self._run_id(root, run), run)
                reader.see(run, now)
            self._directory_problems += [
                RunProblem(str(path), "unreadable", 0, 0, reason) for path, reason in found.problems
            ]
        for identity in set(self._readers) - seen:
            self._miss(identity)

    def _discover(self, root: Path) -> Found:
        problem = root_problem(root)
        if problem is None:
            found = discover(root)
            if not found.runs:
                self._root_problems.append(RootProblem(str(root), "empty"))
            return found
        self._root_problems.append(problem)
        return Found((), ())

    def _run_id(self, root: Path, run: FoundRun) -> str:
        """The run's name; with several log directories the directory's own name comes first."""
        if len(self._roots) == 1:
            return run.name
        number = self._roots.index(root)
        twins = [other for other in self._roots if other.name == root.name]
        prefix = root.name if len(twins) == 1 else f"{root.name}#{number + 1}"
        return prefix if run.name == "." else f"{prefix}/{run.name}"

    def _miss(self, identity: tuple[Path, str]) -> None:
        reader = self._readers[identity]
        reader.missed += 1
        if reader.missed >= MISSED_SCANS:
            del self._readers[identity]
            self._store.drop(reader.id_)
            self._overlays.drop(reader.id_)

    def _read_round(self) -> bool:
        """Read chunks in turn for about ROUND_S; returns whether there is more."""
        deadline = self._clock.monotonic() + ROUND_S
        more = True
        while more and self._clock.monotonic() < deadline and not self._stopping.is_set():
            more = any([reader.read(self._store) for reader in self._readers.values()])  # noqa: C419 - each run its turn
        return more

    def _publish(self) -> None:
        now = self._clock.wall()
        runs = tuple(sorted((reader.info(now) for reader in self._readers.values()), key=lambda info: info.name))
        old = self._catalog
        fresh = Catalog(
            old.version, runs, tuple(self._root_problems), tuple(self._directory_problems), self._watcher.state,
            self._overlays.version, True,
        )  # fmt: skip
        if fresh != old:
            with self._changed:
                self._catalog = replace(fresh, version=old.version + 1)
                self._changed.notify_all()


def root_problem(root: Path) -> RootProblem | None:
    """Why a log directory cannot be read; None when it can."""
    try:
        if not root.exists():
            return RootProblem(str(root), "missing")
        if not root.is_dir():
            return RootProblem(str(root), "not_a_directory")
        with os.scandir(root):
            return None
    except OSError as error:
        return RootProblem(str(root), "unreadable", error.strerror or str(error))
