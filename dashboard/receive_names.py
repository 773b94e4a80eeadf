"""Which folder a received run gets: pure naming, and whose a folder is that exists already."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from dashboard.ingest.discover import SKIPPED
from monitor_core.formats import parse_file_name
from monitor_core.manifest import MANIFEST_NAME, Manifest
from monitor_core.record import FileHeader
from monitor_core.writers.run_files import read_manifest

#: How the note in a received run's ``run.json`` begins; a folder whose run.json lacks it belongs to somebody else.
RECEIVED = "received over HTTP from "
_MAX_NAME_CHARS = 80
_MAX_NAME_BYTES = 200  # file systems take 255; a number and a checksum are added
_MAX_SAME_NAME = 10_000  # runs of one name; each new start looks at all of them
_SAME_START_S = 1e-3  # two starts nearer than this are one: times travel through JSON
_RANK = re.compile(r"rank_\d+", re.ASCII | re.IGNORECASE)


def safe_name(name: str) -> str:
    """A folder name for any run name: letters, digits, ``_ - .`` and spaces stay; a changed name gets a checksum, so that two stay two.

    Names that the reader takes for something else (``rank_3``) or passes over (``node_modules``) count as changed.
    """
    kept = re.sub(r"[^\w\-. ]", "_", name)[:_MAX_NAME_CHARS]
    kept = kept.encode("utf-8", "replace")[:_MAX_NAME_BYTES].decode("utf-8", "ignore").strip(". ")
    if kept == name != "" and not _RANK.fullmatch(name) and name not in SKIPPED:
        return kept
    checksum = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{kept or 'run'}-{checksum}"


def rank_directory(run: Path, header: FileHeader) -> Path:
    """Where the rank's files go."""
    return run / f"rank_{header.rank}" if header.world_size > 1 else run


def manifest_directory(run: Path, header: FileHeader) -> Path:
    """Where the rank's ``run.json`` goes: rank 0 speaks for the run."""
    return run if header.rank == 0 else rank_directory(run, header)


def run_directory(root: Path, header: FileHeader, manifest: Manifest | None) -> Path:
    """By the run's name; where another run of that name is, or a folder that was not received, the next free number.

    A training in a fresh directory begins with attempt 1 and seq 0 again: by its number alone it would be taken for a repeat of the
    other one. So the times at which both started their attempts are compared. Raises OSError when there are too many.
    """
    starts = {known.attempt: known.started for known in (manifest.attempts if manifest else ())}
    starts[header.attempt] = header.created
    name = safe_name(header.run)
    for number in range(1, _MAX_SAME_NAME + 1):
        run = root / (name if number == 1 else f"{name}-{number}")
        if _usable(run, header, starts):
            return run
    raise OSError(f"{_MAX_SAME_NAME} runs are named {name!r} already; give the training another name")


def _usable(run: Path, header: FileHeader, starts: Mapping[int, float]) -> bool:
    mine, home = rank_directory(run, header), manifest_directory(run, header)
    # A link may lead out of the log directory.
    if any(place.is_symlink() or (place.exists() and not place.is_dir()) for place in (run, mine)):
        return False
    if _is_foreign(home, mine) or (home != run and _is_foreign(run, run)):
        return False
    past = read_manifest(home)
    return past is None or _same_run(past, starts)


def _is_foreign(home: Path, files: Path) -> bool:
    """Whether somebody else, a training on this machine for instance, writes there: its run.json must stay its own."""
    told = read_manifest(home)
    if told is not None:
        return not any(note.startswith(RECEIVED) for note in told.notes)
    return (home / MANIFEST_NAME).exists() or any(has_monitor_files(place) for place in {home, files})


def has_monitor_files(directory: Path) -> bool:
    """False for a directory that does not exist. Raises OSError when it cannot be listed."""
    return directory.is_dir() and any(parse_file_name(path.name) for path in directory.iterdir())


def _same_run(past: Manifest, starts: Mapping[int, float]) -> bool:
    return all(abs(starts.get(known.attempt, known.started) - known.started) < _SAME_START_S for known in past.attempts)
