"""The ``msmon`` command: what can be done with log directories without a browser."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monitor_core import __version__

if TYPE_CHECKING:
    from dashboard.ingest.catalog import RunInfo
    from dashboard.overlays import Overlays
    from dashboard.store.table import TableSnapshot
    from monitor_core.detectors.texts import Language


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "verify":
        return _verify(Path(arguments.logdir), arguments.language)
    return inspect(Path(arguments.logdir), as_json=arguments.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="msmon", description="Tools for msmon log directories.")
    parser.add_argument("--version", action="version", version=f"msmon {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    found = commands.add_parser("inspect", help="what a log directory holds and what is wrong with it")
    found.add_argument("logdir", help="directory with runs, or a run itself")
    found.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    checked = commands.add_parser("verify", help="the four layers: configuration, hooks, records, files")
    checked.add_argument("--logdir", required=True, help="the log_dir of a Monitor")
    checked.add_argument("--language", choices=("en", "zh"), default="en")
    return parser


def _verify(logdir: Path, language: Language) -> int:
    """Print the four layers; 0: all passed, 1: one failed."""
    from monitor_core.verify import report, verify

    layers = verify(logdir)
    print(report(layers, language))
    return 0 if all(layer.passed for layer in layers) else 1


def inspect(logdir: Path, *, as_json: bool = False) -> int:
    """Print runs, files, records, findings and problems. 0: all is well, 1: something is damaged, 2: nothing can be read."""
    from dashboard.ingest.ingester import Ingester, root_problem
    from dashboard.overlays import Overlays
    from dashboard.store.table import TableStore

    problem = root_problem(logdir)
    if problem is not None:
        print(
            f"msmon: {logdir}: expected a readable log directory, found: {problem.code} {problem.detail}",
            file=sys.stderr,
        )
        return 2
    store, overlays = TableStore(), Overlays()
    ingester = Ingester([logdir], store, overlays)
    ingester.scan_once()
    catalog = ingester.catalog()
    snapshot = store.snapshot()
    described = [_described(run, snapshot, overlays) for run in catalog.runs]
    if as_json:
        print(json.dumps({"logdir": str(logdir), "runs": described}, indent=1, ensure_ascii=False, default=str))
    else:
        print("\n\n".join(_text(run) for run in described) or f"{logdir}: no monitor files")
    damaged = catalog.directory_problems or any(run.problem_count for run in catalog.runs)
    return 1 if damaged else 0


def _described(run: RunInfo, snapshot: TableSnapshot, overlays: Overlays) -> dict[str, Any]:
    series = [
        {
            "rank": key.rank, "records": extent.rows, "missing": extent.missing, "first_step": extent.first_step,
            "last_step": extent.last_step, "attempts": list(extent.attempts), "metrics": list(extent.metrics),
        }
        for key in snapshot.series()
        if key.run == run.name
        for extent in [snapshot.extent(key)]
    ]  # fmt: skip
    return {
        "name": run.name, "title": run.title, "status": run.status, "reason": run.reason, "series": series,
        "files": [
            {"name": f.name, "format": f.format, "bytes": f.size, "read": f.offset, "records": f.records} for f in run.files
        ],
        "duplicates": run.duplicates,
        "findings": [
            {"rank": item.rank, "kind": item.finding.kind, "first_step": item.finding.first_step,
             "last_step": item.finding.last_step}
            for item in overlays.findings(run.name)
        ],
        "problem_count": run.problem_count,
        "problems": [{"file": p.file, "kind": p.kind, "offset": p.offset, "length": p.length, "reason": p.reason}
                     for p in run.problems],
    }  # fmt: skip


def _text(run: dict[str, Any]) -> str:
    reason = f" ({run['reason']})" if run["reason"] else ""
    lines = [f"{run['name']!r}  {run['title']!r}  {run['status']}{reason}"]
    for series in run["series"]:
        attempts = ",".join(map(str, series["attempts"]))
        lines.append(
            f"  rank {series['rank']}: {series['records']} records, {series['missing']} missing, "
            f"steps {series['first_step']} to {series['last_step']}, attempts {attempts}"
        )
        lines.append("    " + ", ".join(series["metrics"]))
    lines += [
        f"  {file['name']!r}: {file['format']}, {file['bytes']} bytes, {file['records']} records"
        for file in run["files"]
    ]
    lines += [
        f"  finding: {item['kind']}, steps {item['first_step']} to {item['last_step']}" for item in run["findings"]
    ]
    lines += [
        f"  problem: {item['file']!r} at byte {item['offset']}, {item['length']} bytes, {item['kind']}: {item['reason']}"
        for item in run["problems"]
    ]
    if run["problem_count"] > len(run["problems"]):
        lines.append(f"  and {run['problem_count'] - len(run['problems'])} more problems")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
