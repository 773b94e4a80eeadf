"""msmon's training half: record a MindSpore training into files that you own.

    from monitor_core import Model, Monitor

Names are resolved on first use, so that importing this package loads neither MindSpore nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor_core.config import MonitorConfig as MonitorConfig
    from monitor_core.detectors import article_advice as article_advice
    from monitor_core.detectors import detect_gradient_vanish as detect_gradient_vanish
    from monitor_core.detectors import detect_loss_oscillation as detect_loss_oscillation
    from monitor_core.detectors import detect_step_time_spike as detect_step_time_spike
    from monitor_core.errors import ConfigError as ConfigError
    from monitor_core.errors import LogDirError as LogDirError
    from monitor_core.errors import MsmonError as MsmonError
    from monitor_core.logs import load_monitor_logs as load_monitor_logs
    from monitor_core.mindspore import Model as Model
    from monitor_core.mindspore import Monitor as Monitor

__version__ = "0.1.0"

_HOMES = {
    "Model": "monitor_core.mindspore",
    "Monitor": "monitor_core.mindspore",
    "MonitorConfig": "monitor_core.config",
    "ConfigError": "monitor_core.errors",
    "LogDirError": "monitor_core.errors",
    "MsmonError": "monitor_core.errors",
    "article_advice": "monitor_core.detectors",
    "detect_gradient_vanish": "monitor_core.detectors",
    "detect_loss_oscillation": "monitor_core.detectors",
    "detect_step_time_spike": "monitor_core.detectors",
    "load_monitor_logs": "monitor_core.logs",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'monitor_core' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "mindspore":
            raise
        from monitor_core.errors import MissingDependencyError

        raise MissingDependencyError(
            f"monitor_core.{name} needs MindSpore, which is not installed here: pip install 'msmon[mindspore]' "
            "(reading logs and the dashboard do not need it)"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
