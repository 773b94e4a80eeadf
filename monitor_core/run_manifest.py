"""The recorder's side of ``run.json``: what it says now, and when it must be written again."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from monitor_core.config import MonitorConfig
from monitor_core.manifest import Attempt, Manifest
from monitor_core.provenance import command_line, git_commit, versions_here
from monitor_core.record import FileHeader
from monitor_core.redact import redact_endpoint
from monitor_core.writers.run_files import claim_attempt, update_attempt


class RunManifest:
    """``run.json`` of one rank. Changes are made in memory, and written by the thread that writes everything."""

    def __init__(
        self, directory: Path, config: MonitorConfig, versions: Mapping[str, str], rank: int, world_size: int
    ) -> None:
        """Touches nothing. ``directory``: where the file is; ``versions`` join those of Python and the platform."""
        self.directory = directory
        self.stale = False
        """Whether the file says less than this object."""
        self._now = Manifest(config.name, _stored(config), {**versions_here(), **versions}, rank, world_size)

    @property
    def rank(self) -> int:
        """The rank that this process has."""
        return self._now.rank

    def claim(self, now: float, hooks: int | None, facts: Mapping[str, Any]) -> FileHeader:
        """Begin a new attempt under the next free number and write it; what its files begin with. Raises OSError."""
        host = platform.node()
        origin = {"command": command_line(), "git_commit": git_commit()}
        attempt = Attempt(0, now, hooks=hooks, pid=os.getpid(), host=host, facts={**origin, **facts})
        self._now = claim_attempt(self.directory, self._now, attempt)
        number = self._now.attempts[-1].attempt
        return FileHeader(self._now.name, self._now.rank, self._now.world_size, number, now, host, os.getpid())

    def explain(self, reasons: Mapping[str, str], notes: Sequence[str]) -> None:
        """Metrics that cannot be measured, with the reason, and facts that readers must know."""
        absent = {**self._now.absent, **reasons}
        told = tuple(dict.fromkeys((*self._now.notes, *notes)))
        if absent != self._now.absent or told != self._now.notes:
            self._now = replace(self._now, absent=absent, notes=told)
            self.stale = True

    def update(self, **changes: Any) -> None:
        """Change fields of the newest attempt."""
        newest = replace(self._now.attempts[-1], **changes)
        self._now = replace(self._now, attempts=(*self._now.attempts[:-1], newest))
        self.stale = True

    def write(self) -> None:
        """Raises OSError; then the file says less until the next change."""
        self.stale = False
        update_attempt(self.directory, self._now)

    def to_json(self) -> dict[str, Any]:
        """As it is in the file."""
        return self._now.to_json()


def _stored(config: MonitorConfig) -> dict[str, Any]:
    """The configuration with secrets hidden."""
    values = config.as_dict()
    return values | {"http_endpoint": redact_endpoint(config.http_endpoint) if config.http_endpoint else None}
