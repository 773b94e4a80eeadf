"""What the reader knows about runs and files, as values: the run table, the honesty badge and ``msmon inspect`` show it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from hashlib import blake2s
from typing import Literal

import psutil

from monitor_core.manifest import Manifest

RunStatus = Literal["running", "finished", "stopped", "failed", "vanished", "unknown"]
RootCode = Literal["missing", "empty", "not_a_directory", "unreadable"]

#: A training on another machine that wrote nothing for this long is taken for dead: longer than any evaluation or checkpoint.
SILENT_S = 1800.0
#: Files written to this recently are taken for a running training, unless its own process is known to be gone.
FRESH_S = 60.0


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One monitor file."""

    name: str
    """Path relative to the run's directory."""
    rank: int
    format: str
    size: int
    """Bytes in the file at the last scan."""
    offset: int
    """Bytes read."""
    records: int


@dataclass(frozen=True, slots=True)
class RunProblem:
    """A report on bad bytes or an unreadable file."""

    file: str
    kind: str
    offset: int
    length: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run."""

    key: str
    """Short stable name for URLs; the browser sends keys, never paths."""
    name: str
    """Path relative to the log directory."""
    title: str
    """The run's own name (``run.json``), or its folder's."""
    status: RunStatus
    reason: str | None
    manifest: Manifest | None
    ranks: tuple[int, ...]
    files: tuple[FileInfo, ...]
    problems: tuple[RunProblem, ...]
    """The first MAX_PROBLEMS of them."""
    problem_count: int
    duplicates: int
    """Records read more than once (copied or re-synced files); they change nothing."""
    modified: float
    """UTC seconds of the newest write."""

    @property
    def bytes_total(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)

    @property
    def bytes_read(self) -> int:
        """Of them, read so far."""
        return sum(min(file.offset, file.size) for file in self.files)

    @property
    def loading(self) -> bool:
        """Whether more than the closing bytes of open files is still to be read."""
        return any(file.size - file.offset > _CLOSING_BYTES for file in self.files)


#: A JSON file ends in two bytes behind its last record.
_CLOSING_BYTES = 2


@dataclass(frozen=True, slots=True)
class RootProblem:
    """A log directory that shows nothing, and why."""

    path: str
    code: RootCode
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All runs, by name."""

    version: int = 0
    runs: tuple[RunInfo, ...] = ()
    roots: tuple[RootProblem, ...] = ()
    directory_problems: tuple[RunProblem, ...] = ()
    watcher: str = "timer only: not started"
    findings_version: int = 0
    """Of the overlays; another number means other findings."""
    scanned: bool = False
    """Whether the first scan is done."""


def run_key(root: str, name: str) -> str:
    """The same for the same directory, whatever else is there."""
    return blake2s(f"{root}\0{name}".encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def status_of(manifest: Manifest | None, modified: float, now: float) -> tuple[RunStatus, str | None]:
    """The run's status and its reason, from what it says and whether that can still be true."""
    newest = manifest.attempts[-1] if manifest and manifest.attempts else None
    if newest is None:
        return ("running", None) if now - modified < FRESH_S else ("unknown", None)
    if newest.status != "running":
        return newest.status, newest.reason
    if newest.host == platform.node() and newest.pid is not None:
        fresh = now - modified < FRESH_S
        return ("running", None) if _alive(newest.pid, newest.started, fresh) else ("vanished", "its process is gone")
    if now - modified > SILENT_S:
        return "vanished", "nothing written for half an hour"
    return "running", None


def _alive(pid: int, started: float, fresh: bool) -> bool:
    """Whether the attempt's process runs. Dead ones that nobody has waited for keep their number, and a machine that was
    restarted gives old numbers to others; as clocks may be set, that is believed only while nothing is written.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return fresh or process.create_time() < started + FRESH_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
