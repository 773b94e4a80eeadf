"""Rows that are rarely asked for, in files outside the log directories: the one place of the store that touches the disk.

A file is an Arrow IPC file with one record batch of bytes per array, read back through a memory map without a copy. Its name is removed
as soon as it is mapped, where the system allows that: so a process that is killed leaves no data behind.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SCHEMA = pa.schema([("bytes", pa.uint8())])


class DiskCache:
    """See ``dashboard.store.base.Cache``."""

    def __init__(self, parent: Path | None = None) -> None:
        """``parent``: where the directory is made at the first use; None: where the system keeps temporary files."""
        self._parent = parent
        self._folder: str | None = None
        self._files = 0

    def keep(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """See ``Cache``."""
        if self._folder is None:  # removed at the end of the process
            self._folder = tempfile.mkdtemp(prefix="msmon-", dir=self._parent)
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._files += 1
        path = Path(self._folder) / f"{self._files}.arrow"
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                for array in arrays:
                    column = pa.array(np.asarray(array).view(np.uint8))
                    writer.write_batch(pa.record_batch([column], schema=_SCHEMA))
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            return [
                reader.get_batch(number).column(0).to_numpy(zero_copy_only=True).view(array.dtype)
                for number, array in enumerate(arrays)
            ]
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
