"""The article's four layers: did the configuration arrive, are the hooks bound, do records appear, can they be read?

Each layer says what was seen and, when it fails, the likely cause and the fix. Works on a log directory alone (``msmon verify``), and with
what a living Monitor knows of its model (``monitor.verify(model)``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from monitor_core.batch import Batch, concat
from monitor_core.detectors.texts import Language
from monitor_core.formats import parse_file_name
from monitor_core.logs import FileProblem, read_file
from monitor_core.manifest import Manifest
from monitor_core.record import ARTICLE_KEYS
from monitor_core.verify_texts import CAUSES, FAILED, LAYERS, PASSED, SEEN
from monitor_core.writers.run_files import read_manifest

HOOKS = 4


class Attached(NamedTuple):
    """What a living Monitor knows of the model it was given to."""

    reached: bool
    hooks: int
    enabled: bool


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's verdict; ``seen`` and ``cause`` are keys of the texts, filled with ``values``."""

    number: int
    passed: bool
    seen: str
    cause: str | None
    values: dict[str, object]


class _Found(NamedTuple):
    """What the directory holds."""

    manifest: Manifest | None
    batches: dict[str, Batch]
    """Records by format."""
    problems: list[FileProblem]
    files: int


def verify(log_dir: Path, attached: Attached | None = None) -> list[Layer]:
    """Judge a run's directory; ``attached`` adds what the living model shows. Raises nothing for a bad directory."""
    found = _look(log_dir)
    values: dict[str, object] = {"path": str(log_dir), "files": found.files}
    return [
        _first(found, attached, values),
        _second(found, attached, values),
        _third(found, values),
        _fourth(found, values),
    ]


def report(layers: Sequence[Layer], language: Language) -> str:
    """The layers as text."""
    lines = []
    for layer in layers:
        verdict = (PASSED if layer.passed else FAILED)[language]
        lines.append(f"{layer.number} {LAYERS[language][layer.number - 1]}: {verdict}")
        lines.append("  " + SEEN[language][layer.seen].format(**layer.values))
        if layer.cause is not None:
            lines += ["  " + text.format(**layer.values) for text in CAUSES[language][layer.cause]]
    return "\n".join(lines)


def _look(log_dir: Path) -> _Found:
    homes = [log_dir, *sorted(log_dir.glob("rank_*"))] if log_dir.is_dir() else []
    manifest = next((known for home in homes if (known := read_manifest(home)) is not None), None)
    problems: list[FileProblem] = []
    batches: dict[str, list[Batch]] = {}
    files = 0
    for home in homes:
        for path in sorted(home.iterdir()) if home.is_dir() else []:
            parsed = parse_file_name(path.name)
            if parsed is not None and path.is_file():
                files += 1
                batches.setdefault(parsed[1].name, []).append(read_file(path, parsed[1], log_dir, problems))
    return _Found(manifest, {name: concat(parts) for name, parts in batches.items()}, problems, files)


def _first(found: _Found, attached: Attached | None, values: dict[str, object]) -> Layer:
    if attached is not None and not attached.enabled:
        return Layer(1, False, "disabled", "disabled", values)
    if attached is not None:
        return Layer(
            1,
            attached.reached,
            "attached" if attached.reached else "not_attached",
            None if attached.reached else "not_attached",
            values,
        )
    if found.manifest is not None and found.manifest.attempts:
        named = {**values, "name": found.manifest.name, "attempts": len(found.manifest.attempts)}
        return Layer(1, True, "manifest", None, named)
    seen = "no_manifest" if found.files else "nothing"
    return Layer(1, False, seen, seen, values)


def _second(found: _Found, attached: Attached | None, values: dict[str, object]) -> Layer:
    newest = found.manifest.attempts[-1] if found.manifest and found.manifest.attempts else None
    if attached is None and newest is not None and newest.hooks is None:
        return Layer(2, True, "own_loop", None, values)
    count = (
        attached.hooks
        if attached is not None
        else newest.hooks
        if newest is not None and newest.hooks is not None
        else 0
    )
    passed = count == HOOKS
    return Layer(2, passed, "hooks", None if passed else "hooks", {**values, "hooks": count})


def _third(found: _Found, values: dict[str, object]) -> Layer:
    count = sum(len(batch) for batch in found.batches.values())
    newest = found.manifest.attempts[-1] if found.manifest and found.manifest.attempts else None
    filled = {
        **values, "records": count, "status": newest.status if newest else "-", "reason": (newest.reason if newest else None) or "-",
        "dropped": newest.dropped if newest else 0,
    }  # fmt: skip
    cause = None if count else "dropped" if newest and newest.dropped else "never_fired"
    return Layer(3, bool(count), "records", cause, filled)


def _fourth(found: _Found, values: dict[str, object]) -> Layer:
    if found.problems:
        first = found.problems[0]
        bad = {
            **values,
            "count": len(found.problems),
            "file": first.file,
            "offset": first.problem.offset,
            "why": first.problem.reason,
        }
        return Layer(4, False, "damaged", "damaged", bad)
    missing = {name: _missing(batch) for name, batch in found.batches.items()}
    lacking = sorted({key for keys in missing.values() for key in keys})
    formats = ", ".join(found.batches) or "-"
    if not found.batches or lacking:
        reasons = found.manifest.absent if found.manifest else {}
        why = "; ".join(f"{key}: {reasons[key]}" for key in lacking if key in reasons) or "-"
        filled = {**values, "formats": formats, "keys": ", ".join(lacking) or "-", "why": why}
        return Layer(4, False, "keys_missing", "keys_missing" if found.batches else "never_fired", filled)
    return Layer(4, True, "parsed", None, {**values, "formats": formats})


def _missing(batch: Batch) -> list[str]:
    """Of the article's five keys those that no record of the batch has measured."""
    measured = {name for name, column in batch.columns.items() if column.mask().any()}
    return (
        [key for key in ARTICLE_KEYS if key not in ("step", "timestamp") and key not in measured]
        if len(batch)
        else list(ARTICLE_KEYS)
    )
