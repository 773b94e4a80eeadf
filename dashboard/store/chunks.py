"""Columns in chunks of ``CHUNK_ROWS`` rows: quick to append to, cheap to look at, no doubling of the whole.

Row ``r`` stands in chunk ``r // CHUNK_ROWS``. A chunk is a tuple in a list. Readers share the list: a chunk may be replaced by one that
says the same about all rows published so far (grown, compacted, mapped from a file), and nothing below the published count is ever
written to. Only the newest chunk has slack, at most an eighth of what is there (a quarter within the first).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor_core.batch import Bools, Column, Floats, Ints

CHUNK_ROWS = 1 << 16
_FIRST_ROWS = 256  # a chunk begins with this many, so that thousands of short runs stay small
_INT32 = np.iinfo(np.int32)
_MAX_STRIDE = 1 << 62  # beyond it a difference of two 64-bit numbers may have wrapped


def pieces(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """``(chunk, first, end)`` of the parts of rows ``start`` to ``stop``, places within the chunk."""
    while start < stop:
        chunk, first = divmod(start, CHUNK_ROWS)
        end = min(CHUNK_ROWS, first + stop - start)
        yield chunk, first, end
        start += end - first


class Chunks:
    """What both kinds of columns have in common: who holds how many bytes, and how a chunk goes to a file."""

    def __init__(self) -> None:
        self.rows = 0
        self.resident_bytes = 0
        self.spilled_bytes = 0
        self._chunks: list[tuple[Any, ...] | None] = []

    def spillable(self) -> list[tuple[int, NDArray[Any]]]:
        """Arrays of full chunks that still take memory, each with its chunk's number."""
        full = self._chunks[: self.rows // CHUNK_ROWS]
        return [
            (number, part)
            for number, chunk in enumerate(full) if chunk is not None
            for part in chunk if isinstance(part, np.ndarray) and not isinstance(part, Mapped)
        ]  # fmt: skip

    def replace(self, number: int, old: NDArray[Any], new: NDArray[Any]) -> None:
        """Take ``new`` (the same numbers, mapped from a file) in the place of ``old``."""
        chunk = self._chunks[number]
        if chunk is not None and any(part is old for part in chunk):
            self._chunks[number] = tuple(new.view(Mapped) if part is old else part for part in chunk)
            self.resident_bytes -= old.nbytes
            self.spilled_bytes += old.nbytes

    def _room(self, old: NDArray[Any] | None, have: int, need: int, dtype: type) -> NDArray[Any]:
        """``old`` if ``need`` rows fit into it, else a larger copy of its first ``have`` rows."""
        if old is not None and len(old) >= need:
            return old
        held = 0 if old is None else len(old)
        room = min(CHUNK_ROWS, max(need, _FIRST_ROWS, held + held // 4, held + self.rows // 8))
        new: NDArray[Any] = np.empty(room, dtype)
        if old is not None:
            new[:have] = old[:have]
            self.resident_bytes -= old.nbytes
        self.resident_bytes += new.nbytes
        return new

    def _share(self, other: Chunks, rows: int) -> None:
        """Take the full chunks among the first ``rows`` rows of ``other``; the rows behind them are the caller's."""
        full = rows // CHUNK_ROWS
        self._chunks = other._chunks[:full]
        self.rows = full * CHUNK_ROWS
        for chunk in self._chunks:
            for part in chunk or ():
                if isinstance(part, Mapped):
                    self.spilled_bytes += part.nbytes
                elif isinstance(part, np.ndarray):
                    self.resident_bytes += part.nbytes


class Mapped(np.ndarray[Any, Any]):
    """An array whose bytes lie in a file."""


class IntColumn(Chunks):
    """64-bit whole numbers. A chunk in which they go up evenly is two numbers, another takes 4 bytes a row where they are near each other.

    A chunk is ``(base, stride, array)``: without array ``base + stride * place``, with 32-bit ones ``base + array[place]``.
    """

    def append(self, values: Ints) -> None:
        """Behind the last row."""
        done = 0
        for chunk, first, end in pieces(self.rows, self.rows + len(values)):
            part = values[done : done + end - first]
            if chunk == len(self._chunks):
                self._chunks.append(None)
            self._chunks[chunk] = self._joined(self._chunks[chunk], first, part)
            self.rows += len(part)
            done += len(part)

    def read(self, start: int, stop: int) -> Ints:
        """Rows ``start`` to ``stop``, shape ``(stop - start,)``; not to be written to."""
        parts = [self._part(*piece) for piece in pieces(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int64)

    def at(self, row: int) -> int:
        """One row."""
        base, stride, array = self._chunks[row // CHUNK_ROWS]  # type: ignore[misc]
        place = row % CHUNK_ROWS
        if array is None:
            return int(base + stride * place)
        return int(array[place]) + (base if array.dtype == np.int32 else 0)

    def cut_off(self, rows: int) -> IntColumn:
        """A column of the first ``rows`` rows; this one stays as it is for those who read it."""
        found = IntColumn()
        found._share(self, rows)
        found.append(self.read(found.rows, rows))
        return found

    def _part(self, chunk: int, first: int, end: int) -> Ints:
        base, stride, array = self._chunks[chunk]  # type: ignore[misc]
        part: Ints
        if array is None:
            part = base + stride * np.arange(first, end, dtype=np.int64)
        elif array.dtype == np.int32:
            part = array[first:end].astype(np.int64) + base
        else:
            part = array[first:end].view(np.ndarray)
            part.flags.writeable = False
        return part

    def _joined(self, chunk: tuple[Any, ...] | None, have: int, part: Ints) -> tuple[Any, ...]:
        """The chunk with ``part`` behind its first ``have`` rows."""
        first = int(part[0])
        if chunk is None:
            chunk = (first, int(part[1]) - first if len(part) > 1 else 0, None)
        base, stride, array = chunk
        if array is None:
            if have == 1:
                stride = first - base
            even = base + stride * have == first and abs(stride) < _MAX_STRIDE
            if even and (len(part) == 1 or bool((part[1:] - part[:-1] == stride).all())):
                return base, stride, None
            old = base + (stride if have > 1 else 0) * np.arange(have, dtype=np.int64)
        else:
            old = array
        near = array is None or array.dtype == np.int32
        if near and _INT32.min <= int(part.min()) - base and int(part.max()) - base <= _INT32.max:
            near = array is not None or not have or abs(int(old[-1]) - base) <= _INT32.max
        else:
            near = False
        return base, stride, self._stored(base, array, old, have, part, near)

    def _stored(self, base: int, array: Any, old: Any, have: int, part: Ints, near: bool) -> NDArray[Any]:
        need = have + len(part)
        dtype = np.int32 if near else np.int64
        if array is not None and array.dtype == dtype:
            room = self._room(array, have, need, dtype)
        else:
            room = self._room(None, 0, max(need, 0 if array is None else len(array)), dtype)
            if array is None:
                room[:have] = old[:have] - base if near else old[:have]
            else:  # was near and is not any more
                room[:have] = array[:have].astype(np.int64) + base
                self.resident_bytes -= array.nbytes
        room[have:need] = part - base if near else part
        return room


class FloatColumn(Chunks):
    """One metric's values, and for chunks in which some rows lack it a mask of those that have it.

    A chunk is ``(values, mask or None)``, None where no row has a value. Absent values are NaN.
    """

    def append(self, start: int, values: Floats, present: Bools | None) -> None:
        """Rows from ``start`` on; rows since the last append are absent."""
        if present is None and self._append_to_tail(start, values):
            return
        if present is not None and not present.any():
            return
        if start // CHUNK_ROWS > self.rows // CHUNK_ROWS and self.rows % CHUNK_ROWS:
            self._close(self.rows // CHUNK_ROWS, self.rows % CHUNK_ROWS)
        done = 0
        for chunk, first, end in pieces(start, start + len(values)):
            size = end - first
            mask = None if present is None else present[done : done + size]
            self._put(chunk, first, values[done : done + size], mask)
            self.rows = chunk * CHUNK_ROWS + end
            done += size

    def read(self, start: int, stop: int, have: int) -> Column:
        """Rows ``start`` to ``stop``, of which those from ``have`` on are absent; not to be written to."""
        parts = [self._part(*piece) for piece in pieces(start, min(stop, have))]
        lack = stop - max(start, have)
        if lack > 0:
            parts.append(_absent(lack))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Column(np.empty(0))
        values = np.concatenate([part.values for part in parts])
        if all(part.present is None for part in parts):
            return Column(values)
        return Column(values, np.concatenate([part.mask() for part in parts]))

    def cut_off(self, rows: int) -> FloatColumn:
        """A column of the first ``rows`` rows; this one stays as it is for those who read it."""
        found = FloatColumn()
        have = min(rows, self.rows)
        found._share(self, have)
        tail = self.read(found.rows, have, have)
        if len(tail.values):
            found.append(found.rows, tail.values, tail.present)
        return found

    def parts(self, stop: int, have: int) -> list[Column]:
        """Rows 0 to ``stop``, chunk by chunk."""
        return [self.read(first, min(stop, first + CHUNK_ROWS), have) for first in range(0, stop, CHUNK_ROWS)]

    def _part(self, chunk: int, first: int, end: int) -> Column:
        found = self._chunks[chunk]
        held = 0 if found is None else len(found[0])
        if found is None or held <= first:
            return _absent(end - first)
        values = found[0][first:end].view(np.ndarray)
        values.flags.writeable = False
        mask = None if found[1] is None else found[1][first:end].view(np.ndarray)
        if mask is not None:
            mask.flags.writeable = False
        if end > held:  # the metric left off within the chunk
            rest = _absent(end - held)
            mask = np.ones(held - first, bool) if mask is None else mask
            return Column(np.concatenate((values, rest.values)), np.concatenate((mask, rest.mask())))
        return Column(values, None if mask is None or mask.all() else mask)

    def _append_to_tail(self, start: int, values: Floats) -> bool:
        """The usual case: no gap, nothing absent, room in the newest chunk; whether it was that."""
        number, first = divmod(start, CHUNK_ROWS)
        chunk = self._chunks[number] if start == self.rows and number < len(self._chunks) else None
        need = first + len(values)
        if chunk is None or chunk[1] is not None or need > len(chunk[0]):
            return False
        chunk[0][first:need] = values
        self.rows = start + len(values)
        return True

    def _close(self, number: int, have: int) -> None:
        """The metric left off within this chunk: give back what it does not need."""
        chunk = self._chunks[number]
        if chunk is not None:
            short = tuple(None if part is None else part[:have].copy() for part in chunk)
            self.resident_bytes += sum(part.nbytes for part in short if part is not None)
            self.resident_bytes -= sum(part.nbytes for part in chunk if part is not None)
            self._chunks[number] = short

    def _put(self, number: int, first: int, values: Floats, present: Bools | None) -> None:
        while number >= len(self._chunks):
            self._chunks.append(None)
        have = min(first, max(0, self.rows - number * CHUNK_ROWS))
        need = first + len(values)
        chunk = self._chunks[number]
        known, mask = (None, None) if chunk is None else chunk
        if chunk is None:
            have = 0
        room = self._room(known, have, need, np.float64)
        room[have:first] = np.nan
        room[first:need] = values if present is None else np.where(present, values, np.nan)
        if mask is None and (have < first or (present is not None and not present.all())):
            mask = self._room(None, 0, len(room), np.bool_)
            mask[:have] = True
        elif mask is not None:
            mask = self._room(mask, have, need, np.bool_)
        if mask is not None:
            mask[have:first] = False
            mask[first:need] = True if present is None else present
        self._chunks[number] = (room, mask)


def _absent(rows: int) -> Column:
    return Column(np.full(rows, np.nan), np.zeros(rows, bool))
