"""Settings that cannot be meant: status 2, one line that names the field, and no secret in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter import cli

from .running import lines_of, run_program

PASSWORD = "hunter2"
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "no URL": (("--target", "engine:8000"), "target"),
    "other scheme": (("--target", "ftp://engine:21"), "target"),
    "port 0": (("--target", "http://engine:0"), "target"),
    "port no number": (("--target", "http://engine:http"), "target"),
    "password": (("--target", f"http://user:{PASSWORD}@engine:8000"), "target"),
    "user without password": (("--target", "http://user@engine:8000"), "target"),
    "key in a query": (("--target", f"http://engine:8000/?key={PASSWORD}"), "target"),
    "file URL": (("--target", "file:///etc/passwd"), "target"),
    "relative socket": (("--target", "unix://engine.sock"), "target"),
    "socket path too long": (("--target", "unix:///" + "s" * 107), "target"),
    "line end in a header": (
        ("--bearer-token-file", "/t", "--token-header", "X-Key\r\nX-Evil"),
        "token_header",
    ),
    "header that frames": (("--bearer-token-file", "/t", "--token-header", "Content-Length"), "token_header"),
    "header without token": (("--token-header", "X-API-Key"), "token_header"),
    "key without certificate": (("--client-key-file", "/k"), "client_key_file"),
    "server name": (("--tls-server-name", "a\nb"), "tls_server_name"),
    "CA for nothing": (("--ca-file", "/ca", "--insecure-skip-verify"), "ca_file"),
    "interval 0": (("--poll-interval", "0"), "poll_interval"),
    "interval negative": (("--poll-interval=-1",), "poll_interval"),
    "interval nan": (("--poll-interval", "nan"), "poll_interval"),
    "interval no number": (("--poll-interval", "fast"), "poll_interval"),
    "timeout 0": (("--timeout", "0"), "timeout"),
    "listen address": (("--listen-address", "9844"), "listen_address"),
    "port too high": (("--listen-address", ":99999"), "listen_address"),
    "same name twice": (("--target", "http://a:1", "http://a:1"), "target"),
    "no such file": (("--config-file", "/nowhere/settings.yaml"), "/nowhere/settings.yaml"),
    "log format": (("--log-format", "xml"), "log_format"),
}


# A billion laughs: 30 lists, each twice the one before, as the text of a setting that takes text.
BOMB = "bomb:\n- &a [x, x]\n" + "".join(f"- &a{n} [*a{n - 1 or ''}, *a{n - 1 or ''}]\n" for n in range(1, 30))


Run = Callable[..., str]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``serve`` in this process; its one line on stderr, once all else is as it must be."""

    def started(*_: object) -> int:
        raise AssertionError("it would have started")

    def run(*arguments: str, lines: int = 1) -> str:
        try:
            status: object = cli.main(["serve", *arguments])
        except SystemExit as end:
            status = end.code
        said = capsys.readouterr()
        assert status == 2
        assert said.out == ""
        assert PASSWORD not in said.err
        told = lines_of(said.err)
        assert 1 <= len(told) <= lines, said.err
        assert told[0].startswith("kvcache-exporter serve: ")
        return told[0]

    monkeypatch.setattr(cli, "_run", started)
    return run


@pytest.mark.parametrize("name", CASES)
def test_bad_flag_is_one_line(refused: Run, name: str) -> None:
    """The program must not start half-configured, and say which setting it is."""
    arguments, field = CASES[name]
    assert field in refused(*arguments)


def test_unknown_flag_is_one_line(refused: Run) -> None:
    """A typing error in a flag; the usage is for --help, and would bury the line that matters."""
    assert "--poll-intervall" in refused("--poll-intervall", "2")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("poll_intervall: 2\n", "poll_intervall"),
        ("target:\n  - {url: 'http://a:1', colour: red}\n", "target.0.colour"),
        ("target:\n  - {url: 'http://user:hunter2@a:1'}\n", "target.0.url"),
        # urlsplit() passes over these: the host it checks would not be the host that is asked.
        ('target:\n  - {url: "http://a:1/\\r\\nX-Evil: 1"}\n', "target.0.url"),
        ('target:\n  - {url: "http://a\\tb:1"}\n', "target.0.url"),
        ("target:\n  - {url: 'http://a:1', name: \"a\\nlevel=error msg=forged\"}\n", "target.0.name"),
        ("target:\n  - {url: 'http://a:1', route: \"a\\rb\"}\n", "target.0.route"),
        # Tags would make objects of another loader's classes; a secret itself has no setting.
        ("log_level: !!python/object/apply:os.system ['true']\n", "settings.yaml"),
        ("log_level: !!python/name:os.system\n", "settings.yaml"),
        ("bearer_token: hunter2\n", "bearer_token"),
        ("poll_interval: " + "[" * 20_000, "settings.yaml"),  # deeper than the reader's stack
        (BOMB, "bomb"),
        ("poll_interval: [2\n", "settings.yaml"),
        ("- a\n- list\n", "settings.yaml"),
        ("\0\1\2", "settings.yaml"),
    ],
)
def test_bad_file_is_one_line(refused: Run, tmp_path: Path, text: str, field: str) -> None:
    """The same for the settings file; a typing error in a key is an error, not a default."""
    (tmp_path / "settings.yaml").write_text(text)
    assert field in refused("--config-file", str(tmp_path / "settings.yaml"))


@pytest.mark.parametrize("name", ["gpu_bandwidth", "listen_address", "route", "context"])
def test_alias_bomb_is_not_written_out(refused: Run, tmp_path: Path, name: str) -> None:
    """Aliases are shared, not copied, until somebody makes text of them: 2^30 words would be the end."""
    rows = [f"&a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    text = f"{name}:\n" + "".join(f"- {row}\n" for row in ("&a0 [x, x]", *rows))
    (tmp_path / "settings.yaml").write_text(text)
    assert name in refused("--config-file", str(tmp_path / "settings.yaml"), lines=30)


def test_bad_environment_is_one_line() -> None:
    """And for a variable, which names the same field; here with the program itself and its real status."""
    ended = run_program("serve", KVCACHE_EXPORTER_POLL_INTERVAL="0")
    assert ended.returncode == 2
    assert len(lines_of(ended.stderr)) == 1
    assert "poll_interval" in ended.stderr
