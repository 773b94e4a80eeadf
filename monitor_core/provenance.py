"""Where a run came from: command line and git commit, for ``run.json``. Reads files only; runs no program."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from pathlib import Path

from monitor_core.redact import redact_command

_COMMIT = re.compile(r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")
_MAX_BYTES = 4_000_000  # of packed-refs: a repository with more than some ten thousand refs goes without


def command_line() -> list[str]:
    """The program's arguments with secrets hidden."""
    return redact_command(sys.argv)


def versions_here() -> dict[str, str]:
    """Python and platform."""
    return {"python": platform.python_version(), "platform": platform.platform()}


def git_commit(start: Path | None = None) -> str | None:
    """Commit that is checked out where the script lies (or from ``start`` upwards); None outside a repository."""
    here = (start or _script_directory()).absolute()
    for directory in (here, *here.parents):
        found = directory / ".git"
        if found.exists():
            with contextlib.suppress(OSError, ValueError):
                return _head(_git_directory(found))
            return None
    return None


def _script_directory() -> Path:
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    return script.parent if script.is_file() else Path(os.curdir)


def _git_directory(found: Path) -> Path:
    if found.is_dir():
        return found
    pointer = _read(found)  # a worktree or submodule: "gitdir: <path>"
    if not pointer.startswith("gitdir:"):
        raise ValueError(".git: expected 'gitdir: ...'")
    return found.parent / pointer.removeprefix("gitdir:").strip()


def _head(git: Path) -> str | None:
    head = _read(git / "HEAD")
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    common = git / _read(git / "commondir") if (git / "commondir").is_file() else git
    for directory in (git, common):
        if (directory / name).is_file():
            return _commit(_read(directory / name))
    for line in _read(common / "packed-refs").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name:
            return _commit(commit)
    return None


def _commit(text: str) -> str | None:
    return text if _COMMIT.match(text) else None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
