"""Helpers for tests of the reading half and the server: records, runs on disk, a server without a browser."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flask import Flask
from flask.testing import FlaskClient

from dashboard import stream
from dashboard.app import make_server
from dashboard.ingest.ingester import Ingester
from dashboard.overlays import Overlays
from dashboard.settings import Settings
from dashboard.store.table import TableStore
from monitor_core.formats import FORMATS
from monitor_core.record import FileHeader, Record
from monitor_core.writers.file import FileWriter


def record(seq: int, *, attempt: int = 1, step: int | None = None, **scalars: float) -> Record:
    return Record(seq, attempt, seq if step is None else step, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


@pytest.fixture
def write() -> Callable[..., FileWriter]:
    """Write records to a directory in one of the formats and return the writer, still open."""

    def run(
        folder: Path, records: Sequence[Record], format_: str = "json", size: int = 10**7, **more: Any
    ) -> FileWriter:
        folder.mkdir(parents=True, exist_ok=True)
        writer = FileWriter(folder, FORMATS[format_], FileHeader("run", 0, 1, 1, 0.0, "host", 1), size, **more)
        for start in range(0, len(records), 50):
            writer.write(records[start : start + 50])
        return writer

    return run


class Site:
    """A server on a log directory, read synchronously."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.store, self.overlays = TableStore(), Overlays()
        self.ingester = Ingester([root], self.store, self.overlays)
        self.server: Flask = make_server(
            Settings((root,), **settings), stream.Api(self.store, self.ingester, self.overlays)
        )
        self.ingester.scan_once()

    safe = {"Host": "127.0.0.1:8600"}  # noqa: RUF012 - headers of an honest request
    decode = staticmethod(lambda data: decode(data))

    @property
    def client(self) -> FlaskClient:
        return self.server.test_client()

    def key(self, name: str) -> str:
        return next(run.key for run in self.ingester.catalog().runs if run.name == name)

    def live(self, **query: object) -> Any:
        return decode(self.client.get("/api/live", query_string=query, headers=self.safe).data)


def decode(data: bytes) -> dict[str, Any]:
    """The wire format again, from its description and not from its code."""
    magic, version, now, findings, traces = struct.unpack_from("<IIdII", data)
    assert magic == int.from_bytes(b"MSM1", "little")
    at, found = 24, []
    for _ in range(traces):
        run, metric, flags, shift, segments, rows, layout, points, nonfinite = struct.unpack_from(
            "<HHBBHIIII", data, at
        )
        at += 24
        trace: dict[str, Any] = {
            "run": run, "metric": metric, "full": flags & 1, "older_left_out": flags >> 1, "points": points,
            "cursor": f"{shift}.{rows}.{layout}", "nonfinite": nonfinite, "segments": [],
        }  # fmt: skip
        for _ in range(segments):
            attempt, bins, marks, _, ghost = struct.unpack_from("<IIIId", data, at)
            at += 24
            columns = np.frombuffer(data, "<f8", 6 * bins + 2 * marks, at)
            at += columns.nbytes
            names = ("first", "last", "min", "max", "mean", "count")
            trace["segments"].append({"attempt": attempt, "ghost": ghost, "marks": columns[6 * bins :].reshape(2, marks).tolist()}
                                     | dict(zip(names, columns[: 6 * bins].reshape(6, bins).tolist(), strict=True)))  # fmt: skip
        found.append(trace)
    assert at == len(data)
    return {"version": version, "time": now, "findings": findings, "traces": found}


@pytest.fixture
def new_site() -> Callable[..., Site]:
    """Build a server on a log directory; keyword arguments are settings."""
    return Site


@pytest.fixture
def site(tmp_path: Path, write: Callable[..., Any]) -> Site:
    write(tmp_path / "one", [record(seq) for seq in range(1000)])
    write(
        tmp_path / "two",
        [record(seq, loss=1e308 if seq % 2 else -1e308, grad_norm=math.nan) for seq in range(100)],
        "protobuf",
    )
    return Site(tmp_path)
