"""What the three formats share: what a record must be, whole lines out of growing bytes, and bounded batches.

An encoder refuses what its decoder would refuse, so that no record is acknowledged that nobody can read back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import index
from typing import NamedTuple

from monitor_core.batch import Batch, concat
from monitor_core.errors import FormatError
from monitor_core.formats.base import Problem
from monitor_core.limits import MAX_ATTEMPT, MAX_BATCH_CELLS, MAX_LINE_BYTES, MAX_METRICS, MAX_STEP
from monitor_core.record import ARTICLE_KEYS, RESERVED_NAMES, Record

#: A nested value may stand under none of these, as JSON has one place for both.
_NOT_NESTED = RESERVED_NAMES | frozenset(ARTICLE_KEYS)


def check(record: Record) -> None:
    """Raise FormatError for a record that some reader would refuse or alter."""
    seq, attempt, step, epoch, _, scalars, nested = record
    if not (
        0 <= index(seq) <= MAX_STEP
        and 0 <= index(attempt) <= MAX_ATTEMPT
        and -MAX_STEP <= index(step) <= MAX_STEP
        and (epoch is None or 0 <= index(epoch) <= MAX_STEP)
    ):
        raise FormatError(
            f"{_where(record)}, attempt {attempt}, epoch {epoch}: a number is out of range; expected step within 63 bits, "
            f"seq and epoch from 0 to 2**63 - 1, attempt from 0 to {MAX_ATTEMPT}"
        )
    if not RESERVED_NAMES.isdisjoint(scalars):
        taken = sorted(RESERVED_NAMES.intersection(scalars))
        raise FormatError(f"{_where(record)}: metrics {taken} have names of the record itself; choose other names")
    if nested and not (_NOT_NESTED.isdisjoint(nested) and nested.keys().isdisjoint(scalars)):
        raise FormatError(f"{_where(record)}: nested values {list(nested)[:9]!r}: a name is taken; choose another name")
    if len(scalars) + len(nested) > MAX_METRICS:
        raise FormatError(f"{_where(record)}: {len(scalars) + len(nested)} metrics; expected at most {MAX_METRICS}")


def _where(record: Record) -> str:
    return f"record seq {record.seq!r}, step {record.step!r}"


@contextlib.contextmanager
def refusing(records: Sequence[Record]) -> Iterator[None]:
    """Turn what a value of the wrong type raises, whatever the library, into the one error that callers expect."""
    try:
        yield
    except FormatError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        last = f" to {records[-1].seq}" if len(records) > 1 else ""
        raise FormatError(
            f"records seq {records[0].seq}{last}: a value cannot be written: {error}; expected numbers as metrics and "
            "JSON-like nested values"
        ) from error


def plain(name: str) -> str:
    """The name with what UTF-8 cannot hold (lone surrogates) as backslash escapes; the same in every format."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode("utf-8")


def report(problems: list[Problem], found: Problem) -> None:
    """Add a problem; one that follows the last without a gap extends it, so that a bad file is not a million problems."""
    last = problems[-1] if problems else None
    if last and last.kind == found.kind and last.offset + last.length == found.offset:
        problems[-1] = last._replace(length=last.length + found.length)
    else:
        problems.append(found)


class Lines(NamedTuple):
    """Whole lines, without their newline, and what comes behind them."""

    whole: list[bytes]
    offsets: list[int]
    """Place of each line in the file."""
    rest: bytes
    """The unfinished line; empty while one above the cap is passed over."""
    consumed: int
    """File offset up to which lines are whole or passed over."""
    skipping: bool


def split_lines(offset: int, skipping: bool, data: bytes, problems: list[Problem]) -> Lines:
    """Cut ``data``, which stands at ``offset`` in the file; lines above the cap are reported and passed over."""
    pieces = data.split(b"\n")
    offsets = list(accumulate((len(piece) + 1 for piece in pieces), initial=offset))[:-1]
    rest, start = pieces.pop(), offsets.pop()
    if skipping and pieces:
        skipping = False
        del pieces[0], offsets[0]
    if any(len(piece) > MAX_LINE_BYTES for piece in pieces):
        for piece, place in zip(pieces, offsets, strict=True):
            if len(piece) > MAX_LINE_BYTES:
                report(problems, _too_long(place, len(piece) + 1))
        kept = [number for number, piece in enumerate(pieces) if len(piece) <= MAX_LINE_BYTES]
        pieces, offsets = [pieces[number] for number in kept], [offsets[number] for number in kept]
    if not skipping and len(rest) > MAX_LINE_BYTES:
        report(problems, _too_long(start, len(rest)))
        skipping = True
    return Lines(pieces, offsets, b"" if skipping else rest, start + len(rest) if skipping else start, skipping)


def _too_long(offset: int, length: int) -> Problem:
    return Problem("too_large", offset, length, f"expected lines of at most {MAX_LINE_BYTES} bytes; passed over")


def cut_short(offset: int, length: int, what: str) -> Problem:
    """The ordinary problem at the end of a file whose writer was killed."""
    return Problem("truncated", offset, length, f"the file ends inside a {what}: its writer was stopped in mid-write")


def within_caps(rows: int, metrics: int) -> None:
    """Raise ValueError when so many rows with so many metrics would take more memory than any honest file needs."""
    if rows * metrics > MAX_BATCH_CELLS:
        raise ValueError(f"{rows} rows of {metrics} metrics at once; expected at most {MAX_BATCH_CELLS} values")


class Parts:
    """Batches of one ``decode`` call, joined at the end, within the caps."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._names: set[str] = set()
        self._rows = 0

    def add(self, batch: Batch) -> None:
        """Raises ValueError, and leaves the batch out, when the joined batch would get out of bounds."""
        names = self._names | batch.columns.keys()
        within_caps(self._rows + len(batch), len(names))
        self._names = names
        self._rows += len(batch)
        self._batches.append(batch)

    def join(self) -> Batch:
        return concat(self._batches)
