"""The batch that went into a step: its shapes and types, and how many samples it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


def batch_samples(element: object) -> int | None:
    """Length of the first tensor's first axis, which MindSpore data sets batch along; None when there is none."""
    first = element[0] if isinstance(element, (tuple, list)) and element else element
    shape = getattr(first, "shape", None)
    return int(shape[0]) if isinstance(shape, Sequence) and shape else None


class Signature(NamedTuple):
    """One set of input shapes and types."""

    number: int
    """In the order of first appearance, from 0."""
    nested: Mapping[str, object]
    """``input_shapes`` (shape of each tensor, in order) and ``input_dtypes`` (plain names such as ``float32``); never to be changed."""


class InputSignatures:
    """Numbers the distinct sets of input shapes and types.

    The number is a metric like any other (``input_signature``), so that every format and the dashboard carry it. What a set looks like in
    words is made once: the same tensors come at every step.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Signature] = {}

    def of(self, element: Any) -> Signature | None:
        """The signature of a data set element; None when it holds nothing with a shape."""
        parts = element if isinstance(element, (tuple, list)) else [element]
        key = tuple(
            [
                (tuple(part.shape), str(getattr(part, "dtype", "unknown")))
                for part in parts
                if isinstance(getattr(part, "shape", None), Sequence)
            ]
        )
        if not key:
            return None
        return self._known.get(key) or self._add(key)

    def _add(self, key: tuple[Any, ...]) -> Signature:
        nested = {
            "input_shapes": [list(map(int, shape)) for shape, _ in key],
            "input_dtypes": [dtype.lower() for _, dtype in key],
        }
        return self._known.setdefault(key, Signature(len(self._known), nested))
