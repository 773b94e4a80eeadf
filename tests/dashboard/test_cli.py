"""The command line: what it refuses, what it says, what it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard import cli
from monitor_core.record import Record


def rec(seq: int, **scalars: float) -> Record:
    return Record(seq, 1, seq, 1, 1.7e9 + seq, scalars or {"loss": float(seq)})


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("MSMON_")} | environment
    return subprocess.run(
        [sys.executable, "-m", "dashboard.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )


def test_what_the_command_says_about_logdirs_that_cannot_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = run_cli("--logdir", str(tmp_path / "file"))
    assert refused.returncode == 2
    assert "is not a directory" in refused.stderr
    assert "give the directory" in refused.stderr
    none = run_cli()
    assert none.returncode == 2
    assert "expected --logdir DIR" in none.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_logdir_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    refused = run_cli("--logdir", str(tmp_path / "locked"))
    assert refused.returncode == 2
    assert "cannot be read" in refused.stderr


def test_an_unreadable_logdir_is_named_for_root_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dashboard.ingest import ingester

    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ingester.os, "scandir", refuse)
    assert cli.main(["--logdir", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_inspect_needs_no_server(tmp_path: Path, write: Callable[..., Any]) -> None:
    write(tmp_path / "one", [rec(seq) for seq in range(10)])
    shown = run_cli("--inspect", str(tmp_path))
    assert shown.returncode == 0
    assert "10 records, 0 missing, steps 0 to 9" in shown.stdout
    (tmp_path / "one" / "monitor_00002.pb").write_bytes(os.urandom(3000))
    damaged = run_cli("--inspect", str(tmp_path))
    assert damaged.returncode == 1
    assert "'monitor_00002.pb' at byte 0" in damaged.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bind_all"], "set MSMON_TOKEN"), (["--host", "0.0.0.0"], "set MSMON_TOKEN"), (["--reload-interval", "0"], "seconds above 0"),
        (["--port", "99999"], "expected 0 to 65535"),
    ],
)  # fmt: skip
def test_wrong_arguments(tmp_path: Path, arguments: list[str], said: str) -> None:
    refused = run_cli("--logdir", str(tmp_path), *arguments)
    assert refused.returncode == 2
    assert said in refused.stderr


def test_a_busy_port_is_an_error_when_asked_for_and_passed_over_when_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run_cli("--logdir", str(tmp_path), "--port", str(port))
        assert refused.returncode == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in refused.stderr
        found = cli.bind("127.0.0.1", port, fixed=False)
        assert found.getsockname()[1] > port
        found.close()


def test_underscores_and_dashes_are_both_taken() -> None:
    assert cli._dashed(["--bind_all", "--path_prefix=/a_b", "x_y"]) == ["--bind-all", "--path-prefix=/a_b", "x_y"]


@pytest.mark.parametrize(
    ("text", "expected"), [("2G", 2 << 30), ("500MiB", 500 << 20), ("7k", 7 << 10), ("123", 123), ("8TB", 8 << 40)]
)
def test_a_memory_budget_is_a_size(tmp_path: Path, text: str, expected: int) -> None:
    arguments = cli._parser().parse_args(
        ["--logdir", str(tmp_path), "--memory-budget", text, "--cache-dir", "/elsewhere"]
    )
    settings = cli._settings(arguments)
    assert not isinstance(settings, str)
    assert (settings.memory_budget_bytes, settings.cache_dir) == (expected, Path("/elsewhere"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--memory-budget", "much", "such as 500M"),
        ("--memory-budget", "0", "such as 500M"),
        ("--cache-dir", "in", "log directory"),
    ],
)
def test_a_wrong_budget_or_cache_is_refused(tmp_path: Path, option: str, value: str, said: str) -> None:
    value = str(tmp_path / value) if option == "--cache-dir" else value
    found = cli._settings(cli._parser().parse_args(["--logdir", str(tmp_path), option, value]))
    assert isinstance(found, str)
    assert said in found
