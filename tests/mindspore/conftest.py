"""Small nets and data for tests on real MindSpore; everything here is marked ``mindspore``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # MindSpore warns about numpy and its own deprecations while it is imported
    ms: Any = pytest.importorskip("mindspore", reason="MindSpore is not installed: pip install 'msmon[mindspore]'")

MODES = ("GRAPH", "PYNATIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.mindspore)
            # What MindSpore itself warns about is not ours to fix, and differs between its releases.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both execution modes."""
    ms.set_context(mode=getattr(ms, f"{request.param}_MODE"), device_target="CPU")
    yield request.param
    ms.set_context(mode=ms.GRAPH_MODE)
