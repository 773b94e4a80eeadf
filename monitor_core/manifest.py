"""``run.json``: what a run says about itself. Pure; the writer and the reader are elsewhere.

Both sides of the log directory use this file, and nothing else, to agree on the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Status = Literal["running", "finished", "stopped", "failed", "vanished"]

MANIFEST_NAME = "run.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a training in the run's directory."""

    attempt: int
    started: float
    """UTC seconds since 1970-01-01."""
    ended: float | None = None
    status: Status = "running"
    reason: str | None = None
    """The exception's type for ``failed``; who asked for ``stopped``."""
    last_seq: int | None = None
    hooks: int | None = None
    """Hooks bound to the train network; None for a hand-written loop."""
    dropped: int = 0
    """Records that the buffer had to drop because the disk could not keep up."""
    pid: int | None = None
    host: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What this start was made with: command line (secrets hidden), git commit, optimizer and its settings, mode, data."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole of ``run.json``."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    """The fields of ``monitor_config``; secrets never enter it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    rank: int = 0
    world_size: int = 1
    attempts: tuple[Attempt, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """Metric to the reason why it cannot be measured here."""
    notes: tuple[str, ...] = ()
    """Other facts a reader must know, such as a sink size above 1."""

    @property
    def status(self) -> Status | None:
        """Status of the newest attempt; None before any."""
        return self.attempts[-1].status if self.attempts else None

    def to_json(self) -> dict[str, Any]:
        """A value that ``json.dumps`` takes."""
        return {"version": MANIFEST_VERSION, **asdict(self)}


def from_json(value: object) -> Manifest:
    """Read what ``to_json`` gave; unknown keys are ignored, so that newer writers stay readable.

    Raises ValueError, naming the field, for anything that is not a manifest.
    """
    if not isinstance(value, dict):
        raise ValueError(f"run.json: expected an object, got {type(value).__name__}")
    attempts = value.get("attempts", [])
    if not isinstance(attempts, list):
        raise ValueError(f"run.json: attempts: expected a list, got {type(attempts).__name__}")
    notes = value.get("notes") or []
    if not isinstance(notes, list):
        raise ValueError(f"run.json: notes: expected a list, got {type(notes).__name__}")
    return Manifest(
        name=_text(value, "name"),
        config=_mapping(value, "config"),
        versions=_mapping(value, "versions"),
        rank=_integer(value, "rank", 0),
        world_size=_integer(value, "world_size", 1),
        attempts=tuple(_attempt(item) for item in attempts),
        absent=_mapping(value, "absent"),
        notes=tuple(_sound(note) for note in notes),
    )


def _attempt(value: object) -> Attempt:
    if not isinstance(value, dict):
        raise ValueError(f"run.json: attempts: expected objects, got {type(value).__name__}")
    status = value.get("status", "running")
    if status not in get_args(Status):
        raise ValueError(f"run.json: attempts.status: expected one of {get_args(Status)}, got {status!r}")
    return Attempt(
        attempt=_integer(value, "attempt", 1),
        started=_number(value, "started") or 0.0,
        ended=_number(value, "ended"),
        status=status,
        reason=None if value.get("reason") is None else _sound(value["reason"]),
        last_seq=None if value.get("last_seq") is None else _integer(value, "last_seq", 0),
        hooks=None if value.get("hooks") is None else _integer(value, "hooks", 0),
        dropped=_integer(value, "dropped", 0),
        pid=None if value.get("pid") is None else _integer(value, "pid", 0),
        host=None if value.get("host") is None else _sound(value["host"]),
        facts=_mapping(value, "facts"),
    )


def _text(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise ValueError(f"run.json: {key}: expected text, got {type(found).__name__}")
    return _sound(found)


def _sound(value: object) -> str:
    """The text with lone surrogates, which JSON may hold and UTF-8 may not, as escapes: one such name must not break a whole page."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise ValueError(f"run.json: {key}: expected an object, got {type(found).__name__}")
    return found


def _integer(value: Mapping[str, Any], key: str, default: int) -> int:
    found = value.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValueError(f"run.json: {key}: expected a whole number, got {found!r}")
    return found


def _number(value: Mapping[str, Any], key: str) -> float | None:
    found = value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"run.json: {key}: expected a number, got {found!r}")
    return float(found)
