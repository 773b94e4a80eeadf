"""The batch that went into a step: its shapes and how many samples it holds."""

from __future__ import annotations

from collections.abc import Sequence


def input_shapes(element: object) -> list[list[int]]:
    """Shape of each tensor of a data set element, in order; what has no shape is left out."""
    parts = element if isinstance(element, (tuple, list)) else [element]
    return [list(map(int, shape)) for part in parts if isinstance(shape := getattr(part, "shape", None), Sequence)]


def batch_samples(element: object) -> int | None:
    """Length of the first tensor's first axis, which MindSpore data sets batch along; None when there is none."""
    shapes = input_shapes(element)
    return shapes[0][0] if shapes and shapes[0] else None
