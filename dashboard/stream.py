"""The routes that the page's scripts pull: new columns as bytes, runs and findings as JSON.

``GET api/live`` answers with little-endian bytes::

    u32 magic "MSM1" | u32 catalogue version | f64 server's UTC seconds | u32 findings version | u32 number of traces
    then per trace:
        u16 run (place in the request) | u16 metric (place in the request) | u8 flags | u8 shift | u16 segments
        u32 rows | u32 layout | u32 points | u32 non-finite
            flags: 1 whole trace, not a change of one; 2 there are older stretches, counted but not in it
        then per segment:
            u32 attempt | u32 bins | u32 marks | u32 zero | f64 superseded from (NaN: nowhere)
            f64[bins] first step, last step, min, max, mean, count
            f64[marks] step, value (NaN or an infinity)

``full`` 1 replaces what the page has of the trace, 0 replaces its bins from the first one given on. A trace without news is left
out. The request names runs by key, never by path: ``runs``, ``metrics``, ``columns``, optionally ``first`` and ``last`` (steps),
``cursor`` (one ``shift.rows.layout`` per run from the answer before, empty for none), ``version`` and ``wait`` (ms: hold the
answer until something is newer than that version). Repeating a request is harmless.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
from flask import Flask, Response, request

from dashboard.ingest.catalog import Catalog, RunInfo
from dashboard.overlays import Overlays, marks
from dashboard.query import MAX_SEGMENTS
from dashboard.store.base import Segment, SeriesKey, Snapshot, Store, WindowQuery

if TYPE_CHECKING:
    from dashboard.ingest.ingester import Ingester

MAGIC = 0x314D534D
MAX_RUNS = 200  # per request; the page draws fewer
MAX_METRICS = 64
MAX_COLUMNS = 4000  # wider than any screen
MAX_WAIT_S = 1.0  # a held request must not outlive proxies' patience
MAX_MARKS = 500  # findings sent per run
_HEAD = struct.Struct("<IIdII")
_TRACE = struct.Struct("<HHBBHIIII")
_SEGMENT = struct.Struct("<IIIId")


class Cursor(NamedTuple):
    """What the page has of a run."""

    shift: int
    rows: int
    layout: int


class LiveRequest(NamedTuple):
    """A checked ``api/live`` request."""

    runs: tuple[str, ...]
    metrics: tuple[str, ...]
    columns: int
    first: int | None
    last: int | None
    cursors: tuple[Cursor | None, ...]


def parse_live(get: Callable[[str, str], str]) -> LiveRequest:
    """Check the query. Raises ValueError naming the parameter."""
    runs = tuple(filter(None, get("runs", "").split(",")))
    metrics = tuple(filter(None, get("metrics", "").split(",")))
    if len(runs) > MAX_RUNS or len(metrics) > MAX_METRICS:
        raise ValueError(f"runs, metrics: at most {MAX_RUNS} runs and {MAX_METRICS} metrics")
    cursors = get("cursor", "").split(",") if get("cursor", "") else [""] * len(runs)
    if len(cursors) != len(runs):
        raise ValueError("cursor: expected one per run")
    return LiveRequest(
        runs, metrics, min(MAX_COLUMNS, max(1, _integer("columns", get("columns", "1000")))),
        _optional("first", get("first", "")), _optional("last", get("last", "")), tuple(map(_cursor, cursors)),
    )  # fmt: skip


def _integer(name: str, text: str) -> int:
    if not text.removeprefix("-").isdigit() or len(text) > 19:
        raise ValueError(f"{name}: expected a whole number, got {text[:40]!r}")
    return int(text)


def _optional(name: str, text: str) -> int | None:
    return _integer(name, text) if text else None


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    parts = [_integer("cursor", part) for part in text.split(".")]
    if len(parts) != 3:
        raise ValueError("cursor: expected shift.rows.layout")
    return Cursor(*parts)


def live_bytes(
    live: LiveRequest, names: Sequence[str | None], snapshot: Snapshot, catalog: Catalog, now: float
) -> bytes:
    """The answer. ``names``: the run's name for each key of the request, None for one that is gone."""
    series = {key.run: key for key in reversed(snapshot.series())}  # the lowest rank speaks for the run
    parts: list[bytes] = []
    count = 0
    for place, name in enumerate(names):
        key = series.get(name) if name is not None else None
        if key is None:
            continue
        for number, metric in enumerate(live.metrics):
            found = _trace(live, place, number, metric, key, snapshot)
            if found:
                parts += found
                count += 1
    return b"".join([_HEAD.pack(MAGIC, catalog.version, now, catalog.findings_version, count), *parts])


def _trace(live: LiveRequest, place: int, number: int, metric: str, key: SeriesKey, snapshot: Snapshot) -> list[bytes]:
    cursor = live.cursors[place]
    since = cursor.rows if cursor else 0
    query = WindowQuery(key, metric, live.columns, live.first, live.last, since)
    window = snapshot.window(query)
    shift = window.width_steps.bit_length() - 1
    if cursor is not None and cursor == (shift, window.rows, window.layout):
        return []  # nothing new
    full = (
        cursor is None or cursor.shift != shift or cursor.layout != window.layout or cursor.rows > window.rows
        or len(window.segments) >= MAX_SEGMENTS
    )  # fmt: skip
    if full and since:
        window = snapshot.window(replace(query, since_rows=0))
    if not window.segments:  # the run has no such metric
        return []
    if not full and not any(len(part.count) or len(part.nonfinite_step) for part in window.segments):
        return []
    head = _TRACE.pack(
        place, number, full | window.older_left_out << 1, shift,
        len(window.segments), window.rows, window.layout, window.points, window.nonfinite,
    )  # fmt: skip
    return [head, *(piece for segment in window.segments for piece in _segment(segment))]


def _segment(segment: Segment) -> list[bytes]:
    ghost = float("nan") if segment.superseded_from is None else float(segment.superseded_from)
    columns = (
        segment.first_step, segment.last_step, segment.min, segment.max, segment.mean, segment.count,
        segment.nonfinite_step, segment.nonfinite_value,
    )  # fmt: skip
    head = _SEGMENT.pack(segment.attempt & 0xFFFFFFFF, len(segment.count), len(segment.nonfinite_step), 0, ghost)
    return [head, *(np.asarray(column, "<f8").tobytes() for column in columns)]


def run_row(run: RunInfo, snapshot: Snapshot, findings: int, analysed: int) -> dict[str, Any]:
    """One row of the run table, and the numbers of the honesty badge."""
    keys = [key for key in snapshot.series() if key.run == run.name]
    extents = [snapshot.extent(key) for key in keys]
    first = extents[0] if extents else None
    return {
        "key": run.key, "name": run.name, "title": run.title, "status": run.status, "reason": run.reason,
        "steps": first.last_step if first else None, "first_step": first.first_step if first else None,
        "loss": _shown(first.last.get("loss")) if first else None,
        "attempts": len(first.attempts) if first else 0, "ranks": len(run.ranks), "findings": findings,
        "rows": sum(extent.rows for extent in extents), "missing": sum(extent.missing for extent in extents),
        "analysed": analysed, "metrics": list(first.metrics) if first else [],
        "last_time": first.last_timestamp if first and first.last_timestamp == first.last_timestamp else None,
        "loading": run.loading, "bytes_read": run.bytes_read, "bytes_total": run.bytes_total,
        "files_loading": sum(file.size - file.offset > 2 for file in run.files), "files": len(run.files),
        "problems": run.problem_count,
        "problem": _first_problem(run), "modified": run.modified,
    }  # fmt: skip


def _first_problem(run: RunInfo) -> str | None:
    if not run.problems:
        return None
    first = run.problems[0]
    return f"{first.file} @ {first.offset}: {first.kind}: {first.reason}"


def _shown(value: float | None) -> float | str | None:
    """JSON has no NaN: the words that the log files use."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class Api:
    """The routes' wiring."""

    def __init__(self, store: Store, ingester: Ingester, overlays: Overlays) -> None:
        self._store = store
        self._ingester = ingester
        self._overlays = overlays

    def register(self, server: Flask) -> None:
        """Add the routes to the server."""
        server.add_url_rule("/api/live", "api_live", self.live)
        server.add_url_rule("/api/runs", "api_runs", self.runs)
        server.add_url_rule("/api/findings", "api_findings", self.findings)

    def live(self) -> Response:
        """``GET api/live``."""
        try:
            live = parse_live(request.args.get)
            version = _integer("version", request.args.get("version", "-1"))
            wait_s = min(MAX_WAIT_S, _integer("wait", request.args.get("wait", "0")) / 1000)
        except ValueError as error:
            return _json({"error": str(error)}, 400)
        if wait_s > 0:
            self._ingester.wait(version, wait_s)
        # The catalogue first: what the snapshot has beyond it comes again with the next answer, harmlessly.
        catalog = self._ingester.catalog()
        names = self._names(catalog)
        body = live_bytes(live, [names.get(key) for key in live.runs], self._store.snapshot(), catalog, time.time())
        return Response(body, mimetype="application/octet-stream", headers={"Cache-Control": "no-store"})

    def runs(self) -> Response:
        """``GET api/runs``: the run table; 304 when the version in If-None-Match is still the newest."""
        catalog = self._ingester.catalog()
        tag = f'"{catalog.version}.{catalog.findings_version}"'
        if request.headers.get("If-None-Match") == tag:
            return Response(status=304)
        snapshot = self._store.snapshot()
        rows = [
            run_row(run, snapshot, len(self._overlays.findings(run.name)), self._overlays.rows(run.name))
            for run in catalog.runs
        ]
        body = {
            "version": catalog.version,
            "scanned": catalog.scanned,
            "watcher": catalog.watcher,
            "time": time.time(),
            "runs": rows,
            "roots": [{"path": root.path, "code": root.code, "detail": root.detail} for root in catalog.roots],
            "directory_problems": [f"{item.file}: {item.reason}" for item in catalog.directory_problems],
        }
        found = _json(body)
        found.headers["ETag"] = tag
        return found

    def findings(self) -> Response:
        """``GET api/findings?runs=KEY,...&language=en``: marks by run key; 404 for an unknown key."""
        language = "zh" if request.args.get("language") == "zh" else "en"
        names = self._names(self._ingester.catalog())
        body = {}
        for key in filter(None, request.args.get("runs", "").split(",")[:MAX_RUNS]):
            if key not in names:
                return _json({"error": f"no run has the key {key[:40]!r}"}, 404)
            found = self._overlays.findings(names[key])
            body[key] = {"total": len(found), "marks": marks(found[-MAX_MARKS:], language)}  # type: ignore[arg-type]
        return _json(body)

    def _names(self, catalog: Catalog) -> dict[str, str]:
        return {run.key: run.name for run in catalog.runs}


def _json(body: object, status: int = 200) -> Response:
    return Response(
        orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), status, mimetype="application/json",
        headers={"Cache-Control": "no-store"},
    )  # fmt: skip
