"""What a dashboard was started with, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8600  # not 6006 (TensorBoard) nor 8080 (everybody)
PORT_TRIES = 100  # ports tried upwards from the default one
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of ``msmon-dash`` after checking."""

    logdirs: tuple[Path, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token: str | None = None
    """Required beyond loopback."""
    allowed_hosts: frozenset[str] = frozenset()
    """Further names in the Host header, for a reverse proxy; loopback names and ``host`` are always allowed."""
    reload_interval_s: float = 1.0
    path_prefix: str = "/"
    """Begins and ends with a slash."""
    window_title: str = "msmon"
    theme: str = "auto"
    """light, dark or auto."""
    language: str = "auto"
    """en, zh or auto (the browser's)."""
    receive: bool = False
    """Whether records that trainings push are written to the first log directory."""
    memory_budget_bytes: int | None = None
    """Of the store; None: no limit."""
    cache_dir: Path | None = None
    """Where rows above the budget go, in a directory of their own; None: where the system keeps temporary files."""

    @property
    def loopback_only(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in LOOPBACK_HOSTS
