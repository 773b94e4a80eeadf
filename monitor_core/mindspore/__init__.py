"""The only package that imports MindSpore."""

from __future__ import annotations

from monitor_core.mindspore.callback import Monitor
from monitor_core.mindspore.model import Model

__all__ = ["Model", "Monitor"]
