"""Every system call of the file writer in one object, so that tests can fail each of them."""

from __future__ import annotations

import os
from pathlib import Path


class FileSystem:
    """The machine's file system. All methods raise OSError."""

    def make_directory(self, path: Path) -> None:
        """The directory and its parents; fine when it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def names(self, directory: Path) -> list[str]:
        """What the directory holds, in no order."""
        return [path.name for path in directory.iterdir()]

    def status(self, path: Path) -> tuple[int, float]:
        """Size in bytes, and when it last changed in UTC seconds since 1970-01-01."""
        found = path.stat()
        return found.st_size, found.st_mtime

    def create(self, path: Path) -> int:
        """A descriptor of a new file for writing; raises FileExistsError when the name is taken, by a link too."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, flags, 0o644)

    def write_at(self, descriptor: int, data: bytes, offset: int) -> int:
        """How many bytes were written; may be fewer than given."""
        return os.pwrite(descriptor, data, offset)

    def size(self, descriptor: int) -> int:
        """Size of the open file in bytes."""
        return os.fstat(descriptor).st_size

    def is_deleted(self, descriptor: int) -> bool:
        """Whether no name leads to the open file any more, so that what is written to it is lost."""
        return os.fstat(descriptor).st_nlink == 0

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes would survive a power loss."""
        os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Wait until the directory's names would survive a power loss."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def remove(self, path: Path) -> None:
        path.unlink()
