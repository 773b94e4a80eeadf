"""``Monitor.from_config(path)``: TOML, YAML or JSON files with a ``monitor_config`` table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from monitor_core.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20  # a configuration is a page of text; caps what a parser is handed
TABLE = "monitor_config"


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The ``monitor_config`` table of a file, chosen by its ending (.toml, .yaml, .yml, .json).

    Raises ConfigError naming the file and what was expected in it.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{file}: larger than {MAX_CONFIG_BYTES} bytes; expected a page of settings")
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}; expected a UTF-8 file with a {TABLE} table") from error
    table = _parse(file, text)
    found = table.get(TABLE) if isinstance(table, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: expected a table named {TABLE!r} with the fields of the Monitor, found none")
    return found


def _parse(file: Path, text: str) -> Any:
    suffix = file.suffix.lower()
    try:
        if suffix == ".toml":
            return _toml(text)
        if suffix in (".yaml", ".yml"):
            return _yaml(text)
        if suffix == ".json":
            return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{file}: not valid {suffix[1:].upper()}: {error}") from error
    raise ConfigError(f"{file}: unknown kind of file; expected a name ending in .toml, .yaml, .yml or .json")


def _toml(text: str) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
