"""The twelve fields of ``monitor_config`` and their validation: one error that lists every problem."""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from monitor_core.errors import ConfigError
from monitor_core.limits import (
    DEFAULT_BUFFER_RECORDS,
    DEFAULT_COLLECT_FREQ_STEPS,
    DEFAULT_LOG_DIR,
    DEFAULT_MAX_FILE_SIZE_BYTES,
    RECORD_BYTES_ESTIMATE,
)
from monitor_core.redact import HIDDEN, redact_endpoint

_log = logging.getLogger("msmon")

FORMAT_NAMES = ("json", "protobuf", "csv")
RETENTION_KEYS = ("max_files", "max_total_bytes", "max_age_s")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_ENDPOINT_CHARS = 2000
RESPONSES = ("log", "stop")
RESPONSES_TO_COME = ("webhook", "adapt", "dry_run")
#: Switch -> whether it is on by default; what costs more than microseconds per step is off.
EXPORT_OPTIONS = {
    "include_loss": True,
    "include_grad": True,
    "include_input_shape": False,
    "include_memory": True,
    "include_overflow": True,
    "include_lr": True,
    "include_throughput": True,
    "include_phase_time": False,
    "include_comm": False,
    "include_layer_grad": False,
}
#: What may change while a training runs; the other fields decide about files that exist already.
_LIVE_FIELDS = frozenset({"enable", "collect_freq", "debug", "responses", "export_options"})
#: Switches that need something built into the step cell, which is done when a training begins.
_BUILT_IN = ("include_grad", "include_layer_grad", "include_phase_time", "include_comm")
_VERSION_NOTE = "not available in msmon 0.1"


@dataclass(frozen=True, slots=True)
class MonitorConfig:
    """A checked configuration; build it with ``from_mapping`` or through ``Monitor(**fields)``."""

    enable: bool
    """Whether anything is recorded; ``MSMON_ENABLE=0`` or ``1`` in the environment overrides it."""
    name: str
    """The run's name in the dashboard."""
    log_dir: Path
    """Absolute directory of the run, fixed at construction whatever the working directory becomes."""
    collect_freq: int
    """Steps per written batch; every step is recorded."""
    max_file_size: int
    """Bytes after which the next file begins."""
    export_format: tuple[str, ...]
    """One or more of json, protobuf, csv."""
    export_options: Mapping[str, bool]
    """Every switch with its value."""
    buffer_size: int
    """Most records in memory."""
    retention: Mapping[str, float] | None
    """``max_files`` (files), ``max_total_bytes`` (bytes), ``max_age_s`` (seconds)."""
    http_endpoint: str | None
    """Where records are pushed beside the files: an ``msmon-dash --receive`` or any service that takes the payload."""
    responses: tuple[str, ...]
    """What a finding triggers."""
    debug: bool
    """Print every step and write it at once."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values by field name, for ``run.json`` and for ``monitor._config``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["log_dir"] = str(self.log_dir)
        values["export_options"] = dict(self.export_options)
        formats = list(self.export_format)
        values["export_format"] = formats[0] if len(formats) == 1 else formats
        values["responses"] = list(self.responses)
        values["retention"] = None if self.retention is None else dict(self.retention)
        return values

    def replace(self, **changes: object) -> MonitorConfig:
        """The same with some fields changed; raises ConfigError like ``from_mapping``."""
        return from_mapping({**self.as_dict(), **changes})


FIELDS = tuple(field.name for field in fields(MonitorConfig))


def from_mapping(given: Mapping[str, object]) -> MonitorConfig:
    """Check every field. Raises one ConfigError with all problems, each with field, got and expected."""
    problems = [_unknown("field", name, FIELDS) for name in given if name not in FIELDS]
    check = _Checker(given, problems)
    values: dict[str, Any] = {
        "enable": _enabled(check.boolean("enable", True)),
        "name": check.name(),
        "log_dir": check.log_dir(),
        "collect_freq": check.whole("collect_freq", DEFAULT_COLLECT_FREQ_STEPS, 1),
        "max_file_size": check.whole("max_file_size", DEFAULT_MAX_FILE_SIZE_BYTES, 1),
        "export_format": check.formats(),
        "export_options": check.options(),
        "buffer_size": check.whole("buffer_size", DEFAULT_BUFFER_RECORDS, 1),
        "retention": check.retention(),
        "http_endpoint": check.endpoint(),
        "responses": check.responses(),
        "debug": check.boolean("debug", False),
    }
    check.file_holds_a_batch(values["max_file_size"], 1 if values["debug"] else values["collect_freq"])
    if problems:
        raise ConfigError("monitor_config: " + "; ".join(problems))
    return MonitorConfig(**values)


def check_live_change(old: MonitorConfig, new: MonitorConfig) -> None:
    """Raises ConfigError for a change that cannot take effect while a training is recorded."""
    before, after = old.as_dict(), new.as_dict()
    fixed = [field for field in FIELDS if after[field] != before[field] and field not in _LIVE_FIELDS]
    switches = [key for key in _BUILT_IN if new.export_options[key] and not old.export_options[key]]
    fixed += [f"export_options.{key}=True" for key in switches]
    if fixed:
        raise ConfigError(
            f"monitor_config: {', '.join(fixed)}: fixed while a training is recorded; change it before or after"
        )


def _unknown(what: str, name: object, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return f"{what} {name!r} is unknown: {hint}"


def _enabled(configured: bool) -> bool:
    value = os.environ.get("MSMON_ENABLE")
    if value not in ("0", "1"):
        return configured
    override = value == "1"
    if override != configured:
        _log.warning("MSMON_ENABLE=%s in the environment overrides enable=%s of monitor_config", value, configured)
    return override


def default_name() -> str:
    """``ms_monitor_<script>_<time>``."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "session"
    return f"ms_monitor_{script}_{time.strftime('%Y%m%d_%H%M%S')}"


class _Checker:
    """Takes fields out of ``given`` and collects what is wrong with them."""

    def __init__(self, given: Mapping[str, object], problems: list[str]) -> None:
        self._given = given
        self._problems = problems

    def _wrong(self, field: str, expected: str) -> None:
        self._problems.append(f"{field}: got {self._given.get(field)!r}, expected {expected}")

    def _take(self, field: str, default: object) -> Any:
        return self._given.get(field, default)

    def boolean(self, field: str, default: bool) -> bool:
        value = self._take(field, default)
        if not isinstance(value, bool):
            self._wrong(field, "True or False")
            return default
        return value

    def whole(self, field: str, default: int, least: int) -> int:
        value = self._take(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self._wrong(field, f"a whole number of at least {least}")
            return default
        return value

    def name(self) -> str:
        value = self._take("name", None)
        if value is None:
            return default_name()
        if not isinstance(value, str) or not value.strip() or len(value) > 200:
            self._wrong("name", "text of 1 to 200 characters")
            return ""
        if value in _transformers_names():
            self._wrong(
                "name", f"a name that is no registered transformers model type, such as 'ms_monitor_{value}_v1'"
            )
        return value

    def log_dir(self) -> Path:
        value = self._take("log_dir", DEFAULT_LOG_DIR)
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            self._wrong("log_dir", "a path")
            value = DEFAULT_LOG_DIR
        return Path(value).absolute()

    def formats(self) -> tuple[str, ...]:
        value = self._take("export_format", "json")
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not names or any(name not in FORMAT_NAMES for name in names):
            self._wrong("export_format", f"one of {', '.join(map(repr, FORMAT_NAMES))}, or a list of them")
            return ("json",)
        return tuple(dict.fromkeys(names))

    def options(self) -> dict[str, bool]:
        value = self._take("export_options", {})
        if not isinstance(value, Mapping):
            self._wrong("export_options", "a dict of switches such as {'include_grad': True}")
            return dict(EXPORT_OPTIONS)
        for key, switch in value.items():
            if key not in EXPORT_OPTIONS:
                self._problems.append(_unknown("export_options key", key, tuple(EXPORT_OPTIONS)))
            elif not isinstance(switch, bool):
                self._problems.append(f"export_options.{key}: got {switch!r}, expected True or False")
        return EXPORT_OPTIONS | {key: switch for key, switch in value.items() if key in EXPORT_OPTIONS}

    def retention(self) -> dict[str, float] | None:
        value = self._take("retention", None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self._wrong("retention", f"None or a dict with {', '.join(RETENTION_KEYS)}")
            return None
        for key, bound in value.items():
            if key not in RETENTION_KEYS:
                self._problems.append(_unknown("retention key", key, RETENTION_KEYS))
            elif isinstance(bound, bool) or not isinstance(bound, (int, float)) or not bound > 0:
                self._problems.append(f"retention.{key}: got {bound!r}, expected a number above 0")
        return dict(value)

    def endpoint(self) -> str | None:
        value = self._take("http_endpoint", None)
        if value is None:
            return None
        wrong = endpoint_problem(value)
        if wrong:
            shown = HIDDEN if "@" in str(value) else redact_endpoint(str(value))  # before an @ may stand a password
            self._problems.append(f"http_endpoint: got {shown!r}, expected {wrong}")
            return None
        return str(value)

    def responses(self) -> tuple[str, ...]:
        value = self._take("responses", ["log"])
        known = isinstance(value, (list, tuple)) and all(item in RESPONSES + RESPONSES_TO_COME for item in value)
        if not known:
            self._wrong("responses", f"a list of {', '.join(map(repr, RESPONSES))}")
            return ("log",)
        for item in value:
            if item in RESPONSES_TO_COME:
                self._problems.append(f"responses: {item!r} is {_VERSION_NOTE}; use {', '.join(map(repr, RESPONSES))}")
        return tuple(dict.fromkeys(value))

    def file_holds_a_batch(self, max_file_size: int, collect_freq: int) -> None:
        need = collect_freq * RECORD_BYTES_ESTIMATE
        if max_file_size < need:
            self._problems.append(
                f"max_file_size: got {max_file_size}, expected at least {need} bytes, so that a file holds one batch of "
                f"collect_freq={collect_freq} records of about {RECORD_BYTES_ESTIMATE} bytes; raise it or lower collect_freq"
            )


def endpoint_problem(value: object) -> str | None:
    """What is expected instead of this address; None when it is one that records may be sent to."""
    address = host = None
    try:
        address = urlsplit(value) if isinstance(value, str) else None
        host = address.hostname if address and (address.port is None or address.port) else None
    except ValueError:
        address = None
    if address is None or not host or address.scheme not in ("http", "https") or len(str(value)) > MAX_ENDPOINT_CHARS:
        return "None or an address such as 'http://127.0.0.1:8600' or 'https://monitor.example.com/api/records'"
    if not str(value).isascii() or not str(value).isprintable() or " " in str(value) or address.fragment:
        return "an address of printable ASCII without spaces and without '#'"
    if address.username is not None or address.password is not None:
        return "an address without user and password; put a token into MSMON_HTTP_TOKEN"
    if address.scheme == "http" and host not in LOOPBACK_NAMES:
        return "https, as another machine is addressed: records and token would be readable on the way; or a tunnel to 127.0.0.1"
    return None


def _transformers_names() -> frozenset[str]:
    """Registered model types, if the program has imported transformers already; never imports it."""
    mapping = None
    # It loads its parts when they are asked for, and a broken install fails just then.
    with contextlib.suppress(ImportError, RuntimeError):
        mapping = getattr(sys.modules.get("transformers"), "CONFIG_MAPPING", None)
    keys: Callable[[], Any] | None = getattr(mapping, "keys", None)
    return frozenset(map(str, keys())) if keys else frozenset()
