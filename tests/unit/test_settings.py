"""One model for flags, environment and file: who wins, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from exporter.cli import main
from exporter.settings import COMMANDS, ExplainSettings, ServeSettings, flags, host_and_port, load


def serve(*words: str) -> ServeSettings:
    loaded = load(ServeSettings, words)
    assert isinstance(loaded, ServeSettings)
    return loaded


def test_flags_win_over_environment_and_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order that every container user expects."""
    file = tmp_path / "s.yaml"
    file.write_text("poll_interval: 3\ntimeout: 3\nmax_page_bytes: 300000\n")
    monkeypatch.setenv("KVCACHE_EXPORTER_POLL_INTERVAL", "4")
    monkeypatch.setenv("KVCACHE_EXPORTER_TIMEOUT", "4")
    monkeypatch.setenv("KVCACHE_EXPORTER_CONFIG_FILE", str(file))
    got = serve("--poll-interval", "5")
    assert (got.poll_interval, got.timeout, got.max_page_bytes) == (5.0, 4.0, 300_000)


def test_lists_repeated_or_side_by_side_or_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """People write all three."""
    assert serve("--context", "1", "2", "--context", "3").context == [1, 2, 3]
    assert [t.url for t in serve("--target", "http://a:1", "http://b:2").target] == [
        "http://a:1",
        "http://b:2",
    ]
    monkeypatch.setenv("KVCACHE_EXPORTER_CONTEXT", "5,6 7")
    monkeypatch.setenv("KVCACHE_EXPORTER_TARGET", "http://c:3 http://d:4")
    assert serve().context == [5, 6, 7]
    assert [t.label for t in serve().target] == ["c:3", "d:4"]


def test_model_config_flag_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its field is named differently inside; an unprefixed MODEL_CONFIG is somebody else's."""
    monkeypatch.setenv("MODEL_CONFIG", "/not/ours")
    assert serve().model_config_path is None
    monkeypatch.setenv("KVCACHE_EXPORTER_MODEL_CONFIG", "/ours")
    assert serve().model_config_path == Path("/ours")
    assert serve("--model-config", "/flag").model_config_path == Path("/flag")


def test_one_file_for_all_commands(tmp_path: Path) -> None:
    """`explain` must not refuse the file that `serve` runs with, but a key that nobody knows is an error."""
    file = tmp_path / "s.yaml"
    file.write_text("target: [{url: 'http://a:1', name: x, model_config: /m}]\nlisten_address: ':1'\n")
    got = load(ExplainSettings, ["--config-file", str(file)])
    assert [(t.label, t.model_config_path) for t in got.target] == [("x", Path("/m"))]
    file.write_text("listen_adress: ':1'\n")
    with pytest.raises(ValidationError, match="listen_adress"):
        load(ExplainSettings, ["--config-file", str(file)])


def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error must not pass for the default."""
    monkeypatch.setenv("KVCACHE_EXPORTER_POLL_INTERVALL", "1")
    with pytest.raises(ValueError, match="KVCACHE_EXPORTER_POLL_INTERVALL"):
        serve()


def test_a_targets_name_defaults_to_host_and_port_and_is_unique() -> None:
    """Two targets of one name would write the same series."""
    assert serve("--target", "http://h:8000/metrics").target[0].label == "h:8000"
    with pytest.raises(ValidationError, match="same name"):
        serve("--target", "http://h:1", "http://h:1/")


@pytest.mark.parametrize(
    ("address", "parts"),
    [(":9844", ("", 9844)), ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:2", ("::1", 2)), ("h:0", ("h", 0))],
)
def test_listen_addresses(address: str, parts: tuple[str, int]) -> None:
    """The spellings that exporters take."""
    assert host_and_port(address) == parts


@pytest.mark.parametrize("address", ["9844", "h:", "h:x", "h:65536", ""])
def test_bad_listen_addresses(address: str) -> None:
    """Refused before anything is bound."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        host_and_port(address)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_names_every_flag_once_with_a_meaning(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Help is written from the settings, so a setting without a description shows here."""
    assert main([command, "--help"]) == 0
    told = capsys.readouterr().out
    for flag, _, meaning in flags(COMMANDS[command]):
        assert told.count(f"  {flag} ") == 1
        assert meaning


README = Path(__file__).parents[2] / "README.md"


def test_access_examples_of_the_readme(tmp_path: Path) -> None:
    """They are copied as they stand: every flag exists, and the file is one that serve takes."""
    part = README.read_text().partition("## An engine that is guarded\n")[2].partition("\n## ")[0]
    shell, file = re.findall(r"```\w*\n(.*?)```", part, re.S)
    commands = [line.partition("#")[0].split() for line in shell.replace("\\\n", " ").splitlines()]
    assert [words[:2] for words in commands] == [["kvcache-exporter", "serve"]] * 2
    assert [serve(*words[2:]).target[0].label for words in commands] == ["10.0.0.5:8443", "/run/vllm.sock"]
    (tmp_path / "s.yaml").write_text(file)
    got = serve("--config-file", str(tmp_path / "s.yaml"))
    assert [t.bearer_token_file for t in got.target] == [Path("/etc/chat/token"), None]
