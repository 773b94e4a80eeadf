"""``run.json`` and ``events.jsonl``: claiming an attempt, saying how it ended, appending facts."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from monitor_core.errors import LogDirError
from monitor_core.formats import parse_file_name
from monitor_core.limits import MAX_MANIFEST_BYTES
from monitor_core.logs import FileProblem, read_file
from monitor_core.manifest import MANIFEST_NAME, Attempt, Manifest, from_json

EVENTS_NAME = "events.jsonl"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def prepare_directory(directory: Path) -> None:
    """Create the directory and prove that files can be made in it; raises LogDirError before training starts."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise LogDirError(
            f"log_dir {directory}: cannot create files there ({error.strerror or error}); expected a writable directory: "
            "choose another log_dir or change its permissions"
        ) from error


def claim_attempt(directory: Path, manifest: Manifest, attempt: Attempt) -> Manifest:
    """Add this start to the directory's manifest under the next free attempt number, and write it.

    Holds a lock on the directory meanwhile, so that two starts at once get two numbers. Raises OSError when it cannot be written.
    """
    with _locked(directory):
        past = read_manifest(directory)
        attempts = past.attempts if past else ()
        last = max((known.attempt for known in attempts), default=0) or _highest_attempt(directory)
        claimed = replace(manifest, attempts=(*map(_settled, attempts), replace(attempt, attempt=last + 1)))
        write_manifest(directory, claimed)
    return claimed


def update_attempt(directory: Path, manifest: Manifest) -> None:
    """Write the manifest with its newest attempt, keeping attempts that others have claimed since."""
    mine = manifest.attempts[-1]
    with _locked(directory):
        past = read_manifest(directory)
        others = [
            known for known in (past.attempts if past else manifest.attempts[:-1]) if known.attempt != mine.attempt
        ]
        attempts = tuple(sorted([*others, mine], key=lambda known: known.attempt))
        write_manifest(directory, replace(manifest, attempts=attempts))


def read_manifest(directory: Path) -> Manifest | None:
    """The directory's manifest; None when there is none or it is damaged (a writer then makes a new one)."""
    try:
        raw = (directory / MANIFEST_NAME).read_bytes()[: MAX_MANIFEST_BYTES + 1]
        return from_json(json.loads(raw))
    except (OSError, ValueError):
        return None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace ``run.json`` in one step, so that a reader sees the old one or the new one."""
    target = directory / MANIFEST_NAME
    temporary = directory / f".{MANIFEST_NAME}.{os.getpid()}"
    try:
        temporary.write_bytes(manifest_bytes(manifest))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The content of ``run.json``. What UTF-8 cannot hold (lone surrogates, of file names for instance) becomes visible escapes."""
    text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, default=str)
    return _LONE_SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def append_event(directory: Path, event: Mapping[str, object]) -> None:
    """One fact as one line, in one write."""
    line = json.dumps(_finite(event), ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
    descriptor = os.open(directory / EVENTS_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _finite(value: object) -> object:
    """The same with NaN and infinities as text, which JSON has no other word for."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _settled(attempt: Attempt) -> Attempt:
    """An earlier attempt that says it runs, but whose process is gone from this machine, has vanished."""
    if attempt.status != "running" or attempt.host != os.uname().nodename or attempt.pid is None:
        return attempt
    try:
        os.kill(attempt.pid, 0)
    except ProcessLookupError:
        return replace(attempt, status="vanished")
    except OSError:
        return attempt
    # The same process may start anew in the same directory, in a notebook for instance.
    return replace(attempt, status="vanished") if attempt.pid == os.getpid() else attempt


def _highest_attempt(directory: Path) -> int:
    """Newest attempt found in the monitor files, for a directory whose manifest was lost."""
    highest = 0
    problems: list[FileProblem] = []
    for path in directory.iterdir():
        parsed = parse_file_name(path.name)
        if parsed and path.is_file():
            batch = read_file(path, parsed[1], directory, problems)
            highest = max(highest, int(batch.attempt.max(initial=0)))
    return highest


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Advisory lock on the directory itself; file systems without it go on unlocked (decision 3)."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
