"""Which panels there are and what each shows, as data; the scripts in ``assets/`` draw them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["", "s", "bytes", "share", "samples/s", "percent"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its main metric and, on the same or a second axis, a companion."""

    id: str
    """Also the key of its title in the texts, as ``panel_<id>``."""
    metrics: tuple[str, ...]
    """The first of these that a run has is drawn."""
    unit: Unit = ""
    log: bool = False
    """Logarithmic axis to begin with."""
    band: bool = True
    """Draw the min-max band; not for 0/1 metrics, whose band is a solid block."""
    companion: str | None = None
    """Second metric, thin."""
    companion_axis: Literal["same", "right"] = "same"
    finding_metrics: tuple[str, ...] = ()
    """Findings about these metrics are marked here."""


PANELS = (
    Panel("loss", ("loss",), finding_metrics=("loss",)),
    Panel("grad_norm", ("grad_norm",), log=True, finding_metrics=("grad_norm",)),
    Panel("step_time", ("step_time",), "s", companion="data_wait_time", finding_metrics=("step_time",)),
    Panel("memory", ("memory_peak", "host_memory"), "bytes", finding_metrics=("memory_peak", "host_memory")),
    Panel("overflow", ("overflow",), "share", band=False, companion="loss_scale", companion_axis="right"),
)

#: Units of metrics that users add as panels of their own.
METRIC_UNITS: dict[str, Unit] = {
    "data_wait_time": "s",
    "step_time": "s",
    "forward_time": "s",
    "backward_time": "s",
    "comm_time": "s",
    "throughput": "samples/s",
    "memory_allocated": "bytes",
    "memory_peak": "bytes",
    "host_memory": "bytes",
    "comm_bytes": "bytes",
    "cpu_percent": "percent",
}


def as_data() -> list[dict[str, Any]]:
    """The panels as JSON values for the page."""
    return [asdict(panel) for panel in PANELS]
