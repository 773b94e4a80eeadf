"""File events as hints: they only wake the reader early. What is there is found by scanning, with or without them.

Known facts about watchdog that this file lives with: bursts lose events, one exception in a handler kills the observer
for good, a vanished directory leaves it deaf, exhausted watches raise nothing later. So the handler sets a flag and
nothing else, and ``tend`` replaces an observer that died or whose directory came back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

_log = logging.getLogger("msmon")


class _Hint(FileSystemEventHandler):
    """Sets the flag; cannot fail. Reading is no change: reacting to it would wake the reader by its own reads."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.event_type not in ("opened", "closed_no_write"):
            self._wake.set()


class Watcher:
    """Watches log directories as long as that works; says what state it is in."""

    def __init__(self, roots: Sequence[Path], wake: threading.Event) -> None:
        self._roots = tuple(roots)
        self._hint = _Hint(wake)
        self._observer: BaseObserver | None = None
        self._watched: frozenset[tuple[Path, int]] = frozenset()
        self.state = "timer only: not started"
        """``watching``, or ``timer only:`` and the reason."""

    def tend(self) -> None:
        """Start or replace the observer if need be. Cheap when all is well; never raises for the file system's faults."""
        now = frozenset((root, root.stat().st_ino) for root in self._roots if root.is_dir())
        alive = self._observer is not None and self._observer.is_alive()
        if alive and now == self._watched:
            return
        self.stop()
        if not now:
            self.state = "timer only: no log directory yet"
            return
        observer = Observer()
        try:
            for root, _ in now:
                observer.schedule(self._hint, str(root), recursive=True)
            observer.start()
        except OSError as error:  # watches exhausted, or the directory is gone again
            self.state = f"timer only: {error.strerror or error}"
            return
        self._observer, self._watched, self.state = observer, now, "watching"

    def stop(self) -> None:
        """End the observer's threads."""
        observer, self._observer, self._watched = self._observer, None, frozenset()
        if observer is not None and observer.is_alive():
            observer.stop()
            observer.join(timeout=2.0)
