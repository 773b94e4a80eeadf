"""What a machine lacks is skipped with the command that brings it; CI forbids such skips.

Set ``MSMON_REQUIRE_ALL=1`` to turn a missing MindSpore or Chromium into a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """Path of an installed Chromium, or None; ``MSMON_CHROMIUM`` comes first."""
    named = os.environ.get("MSMON_CHROMIUM")
    if named:
        return named
    return next((path for path in map(shutil.which, CHROMIUM_NAMES) if path), None)


def _missing() -> dict[str, str]:
    missing = {}
    if importlib.util.find_spec("mindspore") is None:
        missing["mindspore"] = "MindSpore is not installed: pip install 'msmon[mindspore]'"
    if importlib.util.find_spec("playwright") is None:
        missing["browser"] = "Playwright is not installed: pip install 'msmon[dev]'"
    elif find_chromium() is None:
        missing["browser"] = "no Chromium found: apt-get install chromium, or set MSMON_CHROMIUM"
    return missing


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = _missing()
    if missing and os.environ.get("MSMON_REQUIRE_ALL") == "1":
        raise pytest.UsageError("MSMON_REQUIRE_ALL=1, but " + "; ".join(missing.values()))
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser that browser tests drive."""
    path = find_chromium()
    assert path is not None, "tests with the browser marker are skipped without one"
    return path


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Git-ignored folder in which browser tests keep their pictures, for people to look at."""
    folder = Path(__file__).parents[1] / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder
