"""How much of the past a directory keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Retention:
    """Bounds on the files of one format in one directory; None: no such bound. Whole closed files go, oldest first."""

    max_files: int | None = None
    """The open file counts."""
    max_total_bytes: int | None = None
    """The open file counts as full, so that the sum stays below the bound while it grows."""
    max_age_s: float | None = None
    """Seconds since a file last changed."""


def expendable(
    closed: Sequence[tuple[Path, int, float]], retention: Retention, now: float, open_bytes: int
) -> list[Path]:
    """Which closed files must go, oldest first; each is (path, bytes, when it last changed).

    A file that may stay keeps all newer ones, so that what is kept is one unbroken stretch.
    """
    gone: list[Path] = []
    total = open_bytes + sum(size for _, size, _ in closed)
    for number, (path, size, changed) in enumerate(closed):
        too_many = retention.max_files is not None and len(closed) - number + 1 > retention.max_files
        too_big = retention.max_total_bytes is not None and total > retention.max_total_bytes
        too_old = retention.max_age_s is not None and now - changed > retention.max_age_s
        if not (too_many or too_big or too_old):
            break
        gone.append(path)
        total -= size
    return gone
