"""The twelve fields: defaults, every problem in one error, environment, name clash, files."""

from __future__ import annotations

import logging
import sys
import types
from pathlib import Path

import pytest

from monitor_core.config import FIELDS, MonitorConfig, from_mapping
from monitor_core.config_file import read_config_file
from monitor_core.errors import ConfigError


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MSMON_ENABLE", raising=False)


def problems(**given: object) -> str:
    with pytest.raises(ConfigError) as caught:
        from_mapping(given)
    return str(caught.value)


def test_the_defaults_are_those_of_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = from_mapping({})
    assert len(FIELDS) == 12
    assert config.enable is True
    assert config.log_dir == tmp_path / "logs"
    assert (config.collect_freq, config.max_file_size, config.buffer_size) == (50, 10_485_760, 4096)
    assert (config.export_format, config.retention, config.http_endpoint) == (("json",), None, None)
    assert (config.responses, config.debug) == (("log",), False)
    assert config.name.startswith("ms_monitor_")


def test_one_error_lists_every_problem() -> None:
    text = problems(
        enable="yes", collect_freq=True, max_file_size=-1, export_format="xml", buffer_size=0.5, colect_freq=3
    )
    for part in (
        "enable: got 'yes', expected True or False", "collect_freq: got True, expected a whole number",
        "max_file_size: got -1", "export_format: got 'xml'", "buffer_size: got 0.5",
        "field 'colect_freq' is unknown: did you mean 'collect_freq'?",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"export_options": {"include_gradd": True}}, "did you mean 'include_grad'?"),
        ({"export_options": {"include_grad": 1}}, "export_options.include_grad: got 1"),
        ({"export_options": ["include_grad"]}, "export_options: got ['include_grad']"),
        ({"retention": {"max_files": 0}}, "retention.max_files: got 0"),
        ({"retention": {"max_fils": 3}}, "did you mean 'max_files'?"),
        ({"responses": ["adapt"]}, "'adapt' is not available in msmon 0.1"),
        ({"responses": "log"}, "responses: got 'log'"),
        ({"log_dir": 3}, "log_dir: got 3"),
        ({"name": " "}, "name: got ' '"),
        ({"export_format": []}, "export_format: got []"),
    ],
)
def test_each_wrong_value_is_named(given: dict[str, object], said: str) -> None:
    assert said in problems(**given)


def test_a_file_too_small_for_one_batch_is_an_error_and_not_an_endless_rotation() -> None:
    assert "max_file_size: got 1000, expected at least 25600 bytes" in problems(max_file_size=1000)
    assert from_mapping({"max_file_size": 1000, "collect_freq": 1}).max_file_size == 1000


def test_the_environment_overrides_enable_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MSMON_ENABLE", "0")
    with caplog.at_level(logging.WARNING, "msmon"):
        assert from_mapping({"enable": True}).enable is False
    assert "MSMON_ENABLE=0" in caplog.text
    monkeypatch.setenv("MSMON_ENABLE", "1")
    assert from_mapping({"enable": False}).enable is True


def test_a_name_that_transformers_has_registered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 3.1 of the article, "aimv2 is already used by a transformers config"."""
    assert from_mapping({"name": "aimv2"}).name == "aimv2", "transformers is not imported here: nothing to clash with"
    fake = types.ModuleType("transformers")
    fake.CONFIG_MAPPING = {"aimv2": object, "bert": object}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", fake)
    assert "ms_monitor_aimv2_v1" in problems(name="aimv2")
    assert from_mapping({"name": "ms_monitor_aimv2_v1"}).name == "ms_monitor_aimv2_v1"


def test_several_formats_and_a_round_trip_through_plain_values() -> None:
    config = from_mapping({"export_format": ["json", "csv", "json"], "retention": {"max_files": 3}})
    assert config.export_format == ("json", "csv")
    assert from_mapping(config.as_dict()) == config
    assert isinstance(config.replace(collect_freq=7), MonitorConfig)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", '[monitor_config]\ncollect_freq = 7\nexport_format = "csv"\n'),
        ("a.yaml", "monitor_config:\n  collect_freq: 7\n  export_format: csv\n"),
        ("a.json", '{"monitor_config": {"collect_freq": 7, "export_format": "csv"}}'),
    ],
)
def test_files_of_three_kinds(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_config_file(tmp_path / name) == {"collect_freq": 7, "export_format": "csv"}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ini", "", "expected a name ending in .toml"),
        ("a.toml", "monitor_config = [", "not valid TOML"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a.json", "{}", "expected a table named 'monitor_config'"),
        ("a.json", "[1]", "expected a table named 'monitor_config'"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config_file(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        read_config_file(tmp_path / "nowhere.toml")
