"""The article's silent failure is never silent: a Monitor that recorded nothing says so, once, when the program ends."""

from __future__ import annotations

import atexit
import logging
from typing import Protocol

_log = logging.getLogger("msmon")


class Watched(Protocol):
    """What is asked at the end."""

    @property
    def silence(self) -> str | None:
        """Why nothing was recorded; None when something was."""
        ...


_watched: list[Watched] = []


def watch(monitor: Watched) -> None:
    """Ask this monitor at the program's end; it is kept until then, as a forgotten one is just what must be told."""
    _watched[:] = [other for other in _watched if other.silence is not None]
    _watched.append(monitor)


def tell() -> int:
    """Say it for each monitor that recorded nothing; returns how many those are."""
    silent = 0
    while _watched:
        reason = _watched.pop().silence
        if reason is not None:
            silent += 1
            _log.warning("a Monitor was built but recorded nothing: %s", reason)
    return silent


atexit.register(tell)
