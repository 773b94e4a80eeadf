"""The value that travels from a training step to a file: one frozen record.

The path of a datum is one way: step -> collector -> record -> buffer -> encode -> file.
Nothing here opens, reads a clock or logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Names that a record carries beside its metrics; no metric may take one of them.
RESERVED_NAMES = frozenset({"seq", "attempt", "step", "epoch", "timestamp", "net_outputs"})

#: Keys the article's tools read; every JSON record has all five (null where not measured).
ARTICLE_KEYS = ("step", "loss", "step_time", "grad_norm", "timestamp")

#: Shared empty mapping, so that the hot path allocates none.
NO_NESTED: Mapping[str, object] = MappingProxyType({})


class Record(NamedTuple):
    """What one training step measured.

    Identity and order are ``(run, rank, attempt, seq)``; run and rank come from the directory.
    A metric that was not measured is not in ``scalars``: absent is never 0 and never NaN.
    NaN and infinities are measurements and are kept.
    """

    seq: int
    """Consecutive per writer and attempt, from 0; a gap in it is a counted loss."""
    attempt: int
    """1 for the first start in a directory, +1 for every restart there."""
    step: int
    """Training step as the framework counts it; may go back after a resume."""
    epoch: int | None
    """Epoch from 1, or None where the loop has none."""
    timestamp: float
    """UTC seconds since 1970-01-01."""
    scalars: Mapping[str, float]
    """Metric name to value; units are in the metric's name or in the contract's table."""
    nested: Mapping[str, object] = NO_NESTED
    """JSON-like values that are not scalars, such as ``input_shapes``."""


class FileHeader(NamedTuple):
    """Who writes a file; formats with room for it store it at the file's head."""

    run: str
    rank: int
    world_size: int
    attempt: int
    created: float
    """UTC seconds since 1970-01-01."""
    host: str
    pid: int
