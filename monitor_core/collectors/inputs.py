"""The batch that went into a step: its shapes and types, and how many samples it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def input_shapes(element: object) -> list[list[int]]:
    """Shape of each tensor of a data set element, in order; what has no shape is left out."""
    return [list(map(int, part.shape)) for part in _tensors(element)]


def input_dtypes(element: object) -> list[str]:
    """Type of each tensor of a data set element, in order, by its plain name such as ``float32``."""
    return [str(getattr(part, "dtype", "unknown")).lower() for part in _tensors(element)]


def batch_samples(element: object) -> int | None:
    """Length of the first tensor's first axis, which MindSpore data sets batch along; None when there is none."""
    first = element[0] if isinstance(element, (tuple, list)) and element else element
    shape = getattr(first, "shape", None)
    return int(shape[0]) if isinstance(shape, Sequence) and shape else None


class InputSignatures:
    """Numbers the distinct sets of input shapes and types in the order of their first appearance, from 0.

    The number is a metric like any other (``input_signature``), so that every format and the dashboard carry it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], int] = {}

    def number(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int:
        """The number of this set, a new one when it was never seen."""
        return self._known.setdefault((*map(tuple, shapes), *dtypes), len(self._known))


def _tensors(element: object) -> list[Any]:
    parts = element if isinstance(element, (tuple, list)) else [element]
    return [part for part in parts if isinstance(getattr(part, "shape", None), Sequence)]
