"""Monitor files as a pandas table, for analysis after (or during) a training."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from monitor_core.batch import NO_EPOCH, Batch, concat
from monitor_core.errors import LogDirError
from monitor_core.formats import parse_file_name
from monitor_core.formats.base import Format, Problem
from monitor_core.limits import READ_CHUNK_BYTES
from monitor_core.record import ARTICLE_KEYS

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger("msmon")
_MAX_FLAT_DEPTH = 8  # nested objects below stay Python values: deeper columns help nobody, and a file may be hostile
_RANK = re.compile(r"rank_(\d{1,6})", re.ASCII)


class FileProblem(NamedTuple):
    """Bad bytes with the file they are in."""

    file: str
    """Path relative to the log directory."""
    problem: Problem


def load_monitor_logs(log_dir: str | Path) -> pd.DataFrame:
    """Every record of a run's directory as one row, whatever mix of json, csv and protobuf it holds.

    Rows are ordered by (rank, attempt, seq) and each record stands once. NaN and infinities are measurements; a metric that a
    record lacks is NaN too, as pandas has one word for both. ``step, loss, grad_norm, step_time, timestamp`` are always columns
    (units: contract C), ``net_outputs.loss`` repeats ``loss`` for the article's tools, and a ``rank`` column appears when the
    directory has ranks. Nested objects are flattened to columns such as ``net_outputs.loss``; lists such as ``input_shapes``
    stay Python values.

    Bad bytes never raise: they are in ``df.attrs["problems"]`` (a list of ``FileProblem``) and logged once per file.
    Raises LogDirError when ``log_dir`` is no directory.
    """
    root = Path(log_dir)
    if not root.is_dir():
        raise LogDirError(
            f"{root}: expected a directory with monitor files, found {'a file' if root.exists() else 'nothing'}; "
            "pass the log_dir of the Monitor (it prints its absolute path when it is built)"
        )
    problems: list[FileProblem] = []
    frames = []
    try:
        for rank, directory in _rank_directories(root):
            batches = [read_file(path, format_, root, problems) for path, format_ in _monitor_files(directory)]
            frames.append(_frame(_unique(concat(batches)), rank))
    except PermissionError as error:
        raise LogDirError(
            f"{error.filename}: the directory cannot be listed: make it readable and try again"
        ) from error
    _report(problems)
    return _join(frames, problems)


def read_file(path: Path, format_: Format, root: Path, problems: list[FileProblem]) -> Batch:
    """All whole records of one file; what cannot be read is appended to ``problems``."""
    name = path.relative_to(root).as_posix()
    batches = []
    state = format_.start()
    want = READ_CHUNK_BYTES
    try:
        with path.open("rb", buffering=0) as file:
            while True:
                file.seek(state.offset)
                before, data = state.offset, file.read(want)
                ended = len(data) < want
                state, batch, found = format_.decode(state, data, final=ended)
                batches.append(batch)
                problems.extend(FileProblem(name, problem) for problem in found)
                if ended:
                    break
                # An unfinished record is read again, with more behind it: what was its end may have changed.
                want = len(data) - (state.offset - before) + READ_CHUNK_BYTES
    except OSError as error:
        reason = f"{error.strerror or error}; make the file readable"
        problems.append(FileProblem(name, Problem("unreadable", state.offset, 0, reason)))
    return concat(batches)


def _rank_directories(root: Path) -> list[tuple[int | None, Path]]:
    ranks = sorted(
        (int(match[1]), path) for path in root.iterdir() if (match := _RANK.fullmatch(path.name)) and path.is_dir()
    )
    return [(None if not ranks else 0, root), *ranks] if _monitor_files(root) or not ranks else list(ranks)


def _monitor_files(directory: Path) -> list[tuple[Path, Format]]:
    found = [(parse_file_name(path.name), path) for path in directory.iterdir()]
    mine = [(parsed[0], path, parsed[1]) for parsed, path in found if parsed and path.is_file()]
    # CSV last: where several formats hold the same record, the copy with nested values is the one that stays.
    mine.sort(key=lambda item: (item[2].name == "csv", item[0], item[1].name))
    return [(path, format_) for _, path, format_ in mine]


def _unique(batch: Batch) -> Batch:
    order = np.lexsort((batch.seq, batch.attempt))  # stable: of two equal records the first read one stays
    attempt, seq = batch.attempt[order], batch.seq[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (attempt[1:] != attempt[:-1]) | (seq[1:] != seq[:-1])
    return batch.take(order[fresh])


def _frame(batch: Batch, rank: int | None) -> pd.DataFrame:
    import pandas as pd

    epoch = pd.array(batch.epoch, dtype="Int64")
    epoch[batch.epoch == NO_EPOCH] = pd.NA
    data: dict[str, object] = {} if rank is None else {"rank": np.full(len(batch), rank)}
    data |= {"attempt": batch.attempt, "seq": batch.seq, "step": batch.step, "epoch": epoch}
    data["timestamp"] = batch.timestamp
    data |= {name: column.values for name, column in batch.columns.items() if name != "rank"}
    rows = {row: dict(_flat(nested)) for row, nested in batch.nested.items()}
    for name in dict.fromkeys(key for nested in rows.values() for key in nested):
        values = np.empty(len(batch), object)
        for row, nested in rows.items():
            values[row] = nested.get(name)
        data.setdefault(name, values)
    return pd.DataFrame(data)


def _flat(nested: Mapping[str, object], prefix: str = "", depth: int = _MAX_FLAT_DEPTH) -> Iterator[tuple[str, object]]:
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and depth:
            yield from _flat(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def _join(frames: list[pd.DataFrame], problems: list[FileProblem]) -> pd.DataFrame:
    import pandas as pd

    filled = [frame for frame in frames if len(frame)] or frames[:1]
    table = filled[0] if len(filled) == 1 else pd.concat(filled, ignore_index=True)
    for key in ARTICLE_KEYS:
        if key not in table:
            table[key] = np.nan
    table["net_outputs.loss"] = table["loss"]
    table.attrs["problems"] = problems
    return table


def _report(problems: list[FileProblem]) -> None:
    for name in dict.fromkeys(item.file for item in problems):
        mine = [item.problem for item in problems if item.file == name]
        first = mine[0]
        _log.warning(
            "%r: %d damaged places, first at byte %d (%s): %s", name, len(mine), first.offset, first.kind, first.reason
        )
