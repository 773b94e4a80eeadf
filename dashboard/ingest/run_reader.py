"""Reading the files of one run: what is new goes to the store, what is wrong is remembered."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from dashboard.ingest import tail
from dashboard.ingest.catalog import FileInfo, RunInfo, RunProblem, run_key, status_of
from dashboard.ingest.discover import FoundFile, FoundRun, open_regular
from dashboard.store.base import SeriesKey, Store
from monitor_core.batch import concat
from monitor_core.formats.base import Problem
from monitor_core.limits import MAX_FRAME_BYTES, MAX_MANIFEST_BYTES, READ_CHUNK_BYTES
from monitor_core.manifest import Manifest, from_json

MAX_PROBLEMS = 100  # kept per run; all are counted
FINAL_QUIET_S = (
    10.0  # a file followed by another and silent for this long has ended; two writers may overlap for a moment
)


@dataclass(slots=True)
class _File:
    """One file being followed."""

    state: tail.TailState
    found: FoundFile
    seen: tuple[int, float] = (-1, -1.0)
    """Size and time of the last write when everything readable had been read."""
    want: int = READ_CHUNK_BYTES
    ended: bool = False
    """Followed by another file and silent: it will hardly grow any more."""
    concluded: int = -1
    """Size at which its end was looked at."""


@dataclass(slots=True)
class _ManifestFile:
    seen: tuple[int, int] = (-1, -1)
    manifest: Manifest | None = None
    modified: float = 0.0


@dataclass(slots=True)
class RunReader:
    """Follows one run. ``id_`` is the run's name in the store, unique over all log directories."""

    root: Path
    id_: str
    found: FoundRun
    problems: list[RunProblem] = field(default_factory=list)
    problem_count: int = 0
    duplicates: int = 0
    missed: int = 0
    """Scans in a row that did not see the directory."""
    _files: dict[Path, _File] = field(default_factory=dict)
    _manifest: _ManifestFile = field(default_factory=_ManifestFile)
    _reported: set[tuple[str, str, int]] = field(default_factory=set)
    _scanned: float = 0.0

    def see(self, found: FoundRun, now: float) -> None:
        """Take a scan's view of the directory; ``now``: when the scan began."""
        self.found = found
        self.missed = 0
        self._scanned = now
        paths = {file.path for file in found.files}
        self._files = {path: file for path, file in self._files.items() if path in paths}
        newest = {(file.rank, file.format.name): file.number for file in found.files}
        for seen in found.files:
            file = self._files.setdefault(seen.path, _File(tail.start(seen.format), seen))
            file.found = seen
            followed = newest[seen.rank, seen.format.name] > seen.number
            file.ended = followed and now - seen.modified > FINAL_QUIET_S
        self._read_manifest()

    def read(self, store: Store) -> bool:
        """Read one chunk of each file that has something new; returns whether there is more at once."""
        more = any([self._read_file(file, store) for file in self._files.values()])  # noqa: C419 - each file its turn
        if not more:
            self._expect(store)
        return more

    def info(self, now: float) -> RunInfo:
        """The run as it is now."""
        manifest = self._manifest.manifest
        modified = max((file.found.modified for file in self._files.values()), default=0.0)
        status, reason = status_of(manifest, modified, now)
        folder = self.found.directory.name
        return RunInfo(
            key=run_key(str(self.root), self.found.name), name=self.id_, title=manifest.name if manifest else folder,
            status=status, reason=reason, manifest=manifest,
            ranks=tuple(sorted({file.found.rank for file in self._files.values()})),
            files=tuple(self._file_info(file) for file in self._files.values()), problems=tuple(self.problems),
            problem_count=self.problem_count, duplicates=self.duplicates, modified=modified,
        )  # fmt: skip

    def _expect(self, store: Store) -> None:
        """All is read: what an attempt that has ended recorded and is not there was lost.

        Only by a manifest that is older than the scan, so that the files it speaks of have been seen.
        """
        manifest = self._manifest.manifest
        if manifest is not None and self._manifest.modified < self._scanned:
            for attempt in manifest.attempts:
                if attempt.last_seq is not None:
                    store.expect(SeriesKey(self.id_, manifest.rank), attempt.attempt, attempt.last_seq + 1)

    def _file_info(self, file: _File) -> FileInfo:
        name = file.found.path.relative_to(self.found.directory).as_posix()
        state = file.state
        return FileInfo(name, file.found.rank, state.format.name, file.found.size, state.offset, state.records)

    def _read_file(self, file: _File, store: Store) -> bool:
        look = (file.found.size, file.found.modified)
        if file.seen == look and not (file.ended and file.concluded != file.found.size):
            return False
        name = file.found.path.relative_to(self.found.directory).as_posix()
        try:
            descriptor = open_regular(file.found.path)
        except OSError as error:
            self._report(name, Problem("unreadable", 0, 0, f"{error.strerror or error}; make the file readable"))
            return False
        try:
            return self._read_open(file, name, descriptor, store)
        except OSError as error:
            self._report(name, Problem("unreadable", file.state.offset, 0, str(error.strerror or error)))
            return False
        finally:
            os.close(descriptor)

    def _read_open(self, file: _File, name: str, descriptor: int, store: Store) -> bool:
        status = os.fstat(descriptor)
        state, problems = tail.check(file.state, status.st_size, os.pread(descriptor, tail.FINGERPRINT_BYTES, 0))
        data = os.pread(descriptor, file.want, state.offset)
        at_end = state.offset + len(data) >= status.st_size
        after, batch, found = tail.feed(state, data)
        for problem in (*problems, *found):
            self._report(name, problem)
        if at_end and file.ended:
            # What a torn end still gives. The state stays before it, in case the file grows against expectation.
            _, last, torn = tail.feed(after, data[after.offset - state.offset :], final=True)
            batch = concat([batch, last])
            for problem in torn:
                self._report(name, problem)
            file.concluded = status.st_size
        lost_from = getattr(after.decoder, "lost_from", None)
        if at_end and lost_from is not None:
            # Nothing readable came behind the damage yet; a file of garbage must not look like a file that waits.
            lost = Problem("corrupt", lost_from, status.st_size - lost_from, "expected a frame; none found so far")
            self._report(name, lost)
        stuck = after.offset == state.offset and not at_end
        file.want = min(2 * file.want, MAX_FRAME_BYTES + READ_CHUNK_BYTES) if stuck else READ_CHUNK_BYTES
        file.state = after
        if at_end:
            file.seen = (status.st_size, status.st_mtime)
        if len(batch):
            self.duplicates += store.append(SeriesKey(self.id_, file.found.rank), batch).duplicates
        return not at_end

    def _report(self, file: str, problem: Problem) -> None:
        """Each problem once, however often the place is looked at."""
        identity = (file, problem.kind, problem.offset)
        if identity in self._reported:
            return
        self._reported.add(identity)
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(RunProblem(file, problem.kind, problem.offset, problem.length, problem.reason))

    def _read_manifest(self) -> None:
        if not self.found.manifests:
            return
        path = self.found.manifests[0]
        try:
            descriptor = open_regular(path)
        except OSError as error:
            self._report(path.name, Problem("unreadable", 0, 0, str(error.strerror or error)))
            return
        try:
            status = os.fstat(descriptor)
            look = (status.st_ino, status.st_mtime_ns)
            if look == self._manifest.seen:
                return
            self._manifest.seen = look
            self._manifest.modified = status.st_mtime
            self._manifest.manifest = from_json(json.loads(os.pread(descriptor, MAX_MANIFEST_BYTES, 0)))
        except (OSError, ValueError) as error:
            self._report(path.name, Problem("corrupt", 0, 0, f"{error}; the run is shown without it"))
        finally:
            os.close(descriptor)
