"""Where a run came from, and that no secret comes along."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from monitor_core.config import from_mapping
from monitor_core.logs import load_monitor_logs
from monitor_core.monitor import Recorder
from monitor_core.provenance import git_commit
from monitor_core.redact import redact_command, redact_text
from monitor_core.writers.run_files import read_manifest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (["--token", "abc", "--lr", "0.1"], ["--token", "***", "--lr", "0.1"]),
        (["--password=abc=def", "x"], ["--password=***", "x"]),
        (["--hf-token=x", "API_KEY=y", "api-key:z"], ["--hf-token=***", "API_KEY=***", "api-key:***"]),
        (["--authToken", "abc"], ["--authToken", "***"]),
        (["--token", "--lr", "1"], ["--token", "--lr", "1"]),
        (["--token", "-abc"], ["--token", "***"]),
        (["--tokenizer", "bert", "--max_tokens", "512", "--author=me"],) * 2,
        (["--monkey=1", "--key-frames", "3", "keyboard=2"],) * 2,
        (["s3://user:pass@host/x"], ["s3://***@host/x"]),
        (["http://h/x?a=1&access_token=abc&b=2"], ["http://h/x?a=1&access_token=***&b=2"]),
        (["--push", "hf_abcdefghijklmnop"], ["--push", "***"]),
        ([], []),
    ],
)  # fmt: skip
def test_values_of_secret_options_are_hidden_and_no_others(given: list[str], stored: list[str]) -> None:
    assert redact_command(given) == stored


def test_text_keeps_everything_but_the_secret() -> None:
    assert (
        redact_text("see https://me:pw@host:80/a?key=1#x and sk-aaaaaaaaaa")
        == "see https://***@host:80/a?key=***#x and ***"
    )


def test_the_commit_is_what_git_says(tmp_path: Path) -> None:
    def git(*arguments: str, folder: Path = tmp_path) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "main")
    assert git_commit(tmp_path) is None, "no commit yet"
    git("commit", "-q", "--allow-empty", "-m", "x")
    head = git("rev-parse", "HEAD")
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    assert git_commit(inside) == head
    git("pack-refs", "--all")
    assert git_commit(tmp_path) == head, "packed"
    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git("commit", "-q", "--allow-empty", "-m", "y", folder=tmp_path / "tree")
    assert git_commit(tmp_path / "tree") == git("rev-parse", "HEAD", folder=tmp_path / "tree") != head, "a worktree"
    git("checkout", "-q", "--detach")
    assert git_commit(tmp_path) == head, "detached"


@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone", "ref:", "not a commit", COMMIT + "0"])
def test_a_damaged_repository_gives_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert git_commit(tmp_path) is None


def test_run_json_tells_command_commit_and_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "code" / "train.py"
    (script.parent / ".git").mkdir(parents=True)
    (script.parent / ".git" / "HEAD").write_text(COMMIT)
    script.touch()
    monkeypatch.setattr("sys.argv", [str(script), "--secret", "hunter2"])
    recorder = Recorder(from_mapping({"log_dir": tmp_path / "run"}))
    recorder.open(facts={"optimizer": {"class": "Adam"}})
    recorder.record(1, 1, {"loss": 1.0})
    recorder.close()
    manifest = read_manifest(tmp_path / "run")
    assert manifest is not None
    assert manifest.attempts[0].facts == {
        "command": [str(script), "--secret", "***"], "git_commit": COMMIT, "optimizer": {"class": "Adam"},
    }  # fmt: skip
    assert "hunter2" not in (tmp_path / "run" / "run.json").read_text()
    assert len(load_monitor_logs(tmp_path / "run")) == 1
