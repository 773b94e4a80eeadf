"""Which runs there are: directories with monitor files, and their ranks. Follows no link, opens nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from monitor_core.formats import parse_file_name
from monitor_core.formats.base import Format
from monitor_core.manifest import MANIFEST_NAME

MAX_DEPTH = 8  # directories below --logdir; a deeper tree is somebody's data, not a log directory
MAX_DIRECTORIES = 50_000  # visited per scan: bounds a scan of a whole disk given by mistake
_RANK = re.compile(r"rank_(\d{1,6})", re.ASCII)
SKIPPED = frozenset({"__pycache__", "node_modules", "kernel_meta"})


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A monitor file as the directory shows it."""

    path: Path
    rank: int
    number: int
    format: Format
    size: int
    modified: float
    """UTC seconds of the last write, for showing; never used for order."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run's directory."""

    name: str
    """Path relative to its log directory; ``.`` for the log directory itself."""
    directory: Path
    files: tuple[FoundFile, ...]
    """By rank, format and number."""
    manifests: tuple[Path, ...]
    """``run.json`` of the run and of its ranks."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a scan saw."""

    runs: tuple[FoundRun, ...]
    problems: tuple[tuple[Path, str], ...]
    """Directories that could not be listed, with the reason."""


def discover(root: Path) -> Found:
    """All runs at and below ``root``. A directory that cannot be listed costs only itself."""
    problems: list[tuple[Path, str]] = []
    parts: dict[Path, _Parts] = {}
    for directory, entries in _walk(root, problems):
        match = _RANK.fullmatch(directory.name) if directory != root else None
        home, rank = (directory.parent, int(match[1])) if match else (directory, 0)
        files = [found for entry in entries if (found := _file(entry, rank))]
        manifest = any(entry.name == MANIFEST_NAME and _is_regular(entry) for entry in entries)
        if files or manifest:
            run = parts.setdefault(home, _Parts([], []))
            run.files.extend(files)
            if manifest:
                run.manifests.append(directory / MANIFEST_NAME)
    runs = [
        FoundRun(
            home.relative_to(root).as_posix(),
            home,
            tuple(sorted(run.files, key=lambda file: (file.rank, file.format.name, file.number))),
            tuple(sorted(run.manifests, key=lambda path: len(path.parts))),
        )
        for home, run in sorted(parts.items())
    ]
    return Found(tuple(runs), tuple(problems))


@dataclass(slots=True)
class _Parts:
    files: list[FoundFile]
    manifests: list[Path]


def _walk(root: Path, problems: list[tuple[Path, str]]) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    waiting = [(root, 0)]
    visited = 0
    while waiting:
        directory, depth = waiting.pop()
        visited += 1
        if visited > MAX_DIRECTORIES:
            problems.append(
                (root, f"more than {MAX_DIRECTORIES} directories; the rest is left out: give a narrower --logdir")
            )
            return
        try:
            with os.scandir(directory) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            problems.append((directory, f"cannot be listed: {error.strerror}; make it readable"))
            continue
        yield directory, entries
        if depth < MAX_DEPTH:
            waiting += [(Path(entry.path), depth + 1) for entry in reversed(entries) if _is_directory(entry)]


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        hidden = entry.name.startswith(".") or entry.name in SKIPPED
        return not hidden and entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _file(entry: os.DirEntry[str], rank: int) -> FoundFile | None:
    parsed = parse_file_name(entry.name)
    if parsed is None or not _is_regular(entry):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:  # gone between listing and asking
        return None
    return FoundFile(Path(entry.path), rank, parsed[0], parsed[1], status.st_size, status.st_mtime)


def open_regular(path: Path) -> int:
    """A read-only descriptor of a regular file; never follows a link and never waits (a FIFO may pose as a file).

    Raises OSError.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(f"{path}: not a regular file")
