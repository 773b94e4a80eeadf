"""``monitor._config``: the article's way to read and change fields."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

from monitor_core.config import MonitorConfig
from monitor_core.errors import ConfigError


class Configurable(Protocol):
    """What the view needs of a Monitor."""

    @property
    def config(self) -> MonitorConfig:
        """The configuration in force."""
        ...

    def reconfigure(self, **changes: object) -> None:
        """Change fields, validated."""
        ...


class ConfigView(MutableMapping[str, Any]):
    """``monitor._config``: the fields as a dict whose assignments are validated."""

    def __init__(self, monitor: Configurable) -> None:
        self._monitor = monitor

    def __getitem__(self, field: str) -> Any:
        return self._monitor.config.as_dict()[field]

    def __setitem__(self, field: str, value: object) -> None:
        self._monitor.reconfigure(**{field: value})

    def __delitem__(self, field: str) -> None:
        raise ConfigError(f"monitor_config: {field}: fields cannot be removed; assign a value instead")

    def __iter__(self) -> Iterator[str]:
        return iter(self._monitor.config.as_dict())

    def __len__(self) -> int:
        return len(self._monitor.config.as_dict())

    def __repr__(self) -> str:
        return repr(self._monitor.config.as_dict())
