"""Canaries: secrets in every place where we meet any, and every output searched for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from . import hostile as h
from .engines import LLAMA, models, vllm
from .page import ERRORS
from .running import Program, run_program

TOKEN, BROKEN, PROXY, KEY, HUB, QUERY = (
    f"c4nary-{word}" for word in ("token", "broken", "proxy", "key", "hub", "query")
)
SECRETS = (TOKEN, BROKEN, PROXY, KEY, HUB, QUERY)
PATHS = (
    "/metrics",
    "/explain",
    "/explain?output=json",
    "/",
    "/nothing",
    "/explain?target=nobody",
    "/-/ready",
    "/-/config",
    "/-/config?output=json",
    "/sd",
    "/probe?target=127.0.0.1:1&module=guarded&debug=true",
)


def _challenge(c: h.Connection) -> None:
    h.body("who are you?", "401 Unauthorized", WWW_Authenticate="Bearer")(c)


class Stand:
    """Engines of every kind of trouble, a hub, and the flags and environment that lead to them."""

    def __init__(self, folder: Path, engines: h.HostileServer, hub: h.HostileServer, refused: int) -> None:
        self.engines, self.hub = engines, hub
        (folder / "token").write_text(TOKEN)
        (folder / "broken").write_text(f"{BROKEN}\r\nX-Evil: 1")
        (folder / "key").write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n")
        token = str(folder / "token")
        targets = [
            {"name": name, "url": engines.url(name), "bearer_token_file": token}
            for name in ("good", "unknown-model", "locked", "redirecting", "cut")
        ]
        targets += [
            {"name": "gone", "url": f"http://127.0.0.1:{refused}", "bearer_token_file": token},
            {"name": "broken-token", "url": engines.url("good"), "bearer_token_file": str(folder / "broken")},
            {"name": "proxied", "url": "http://engine.invalid:8000", "bearer_token_file": token},
            {
                "name": "bad-key",
                "url": f"https://127.0.0.1:{engines.port}",
                "client_cert_file": str(folder / "key"),
            },
        ]
        self.names = [target["name"] for target in targets]
        self.file = folder / "settings.json"  # JSON is YAML
        probing = {"probe_allow": ["127.0.0.1:*"], "modules": {"guarded": {"bearer_token_file": token}}}
        self.file.write_text(json.dumps({"target": targets, **probing}))
        self.flags = ["--config-file", str(self.file), "--timeout", "3", "--log-level", "debug"]
        self.env = {
            "HF_HUB_OFFLINE": "0",
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
            "HF_TOKEN": HUB,
            "HF_HOME": str(folder / "hf"),
            "HTTP_PROXY": f"http://user:{PROXY}@127.0.0.1:{refused}",
            "NO_PROXY": "127.0.0.1",  # the hub
            "KVCACHE_EXPORTER_FORWARD_TRACES": f"http://127.0.0.1:{refused}/v1/traces?key={QUERY}",
        }


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    away = h.body("", "302 Found", Location="http://127.0.0.1:1/metrics")
    engines = {
        "good": vllm(),
        "unknown-model": vllm(v1_models=models("owner/name")),
        "locked": _challenge,
        "redirecting": away,
        "cut": vllm(metrics=h.raw(h.head(Content_Length="100") + b"vllm:")),
    }

    class Hub(dict[str, h.Answer]):
        def __missing__(self, _: str) -> h.Answer:
            return h.body("no", "404 Not Found")

    with (
        h.HostileServer(engines) as server,
        h.HostileServer(Hub()) as hub,
        h.reserve_port() as refused,
    ):
        yield Stand(tmp_path, server, hub, refused.getsockname()[1])


def leaks(*texts: str) -> Sequence[str]:
    return [secret for secret in SECRETS for text in texts if secret in text]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_output_has_a_secret(stand: Stand, tmp_path: Path, log_format: str) -> None:
    """Under every kind of trouble log, pages and errors name files and hosts, never what is secret."""
    flags = [*stand.flags, "--log-format", log_format]
    with Program(tmp_path / "log", *flags, env=stand.env) as program:
        bad = [name for name in stand.names if name not in ("good", "unknown-model")]
        program.wait(lambda p: all(p.reasons(ERRORS, name) for name in bad), "every trouble")
        program.wait(lambda p: p.value("kvcache_engine_up", target="good") == 1, "the good one")
        seen = program.scrape()
        body = b"\x0a\x00"  # an empty export, to have the forwarder try and fail
        program.post("/v1/traces/good", body, "application/x-protobuf")
        program.wait_for_polls("good", 2)
        assert set(seen.reasons(ERRORS, "broken-token")) == {"access_file"}
        assert set(seen.reasons(ERRORS, "bad-key")) == {"access_file"}
        pages = [program.get(path).text for path in PATHS]
        said = program.output()
    assert leaks(*pages, said) == []
    # The bait was there: the engines got the token, and the log tells of the files.
    assert any(TOKEN.encode() in head for head in stand.engines.heads)
    assert str(tmp_path / "broken") in said


def test_each_secret_goes_to_its_own(stand: Stand, tmp_path: Path) -> None:
    """The engine's token never to the hub, the hub's never to an engine."""
    with Program(tmp_path / "log", *stand.flags, env=stand.env) as program:
        program.wait(
            lambda p: p.why_missing("unknown-model").get("kvcache_bytes_per_token") == "model_config",
            "the model that is nowhere",
        )
        program.wait(lambda _: stand.hub.heads, "the hub asked")
    assert all(TOKEN.encode() not in head for head in stand.hub.heads)
    assert all(HUB.encode() not in head for head in stand.engines.heads)


@pytest.mark.parametrize("command", ["explain", "check"])
@pytest.mark.parametrize("name", ["good", "locked", "redirecting", "broken-token"])
def test_commands_have_no_secret(stand: Stand, tmp_path: Path, command: str, name: str) -> None:
    """What is attached to a bug report."""
    token = tmp_path / ("broken" if name == "broken-token" else "token")
    url = stand.engines.url("good" if name == "broken-token" else name)
    words = [url] if command == "check" else ["--target", url]
    env = {k: v for k, v in stand.env.items() if not k.startswith("KVCACHE")}
    for output in ("text", "json"):
        ended = run_program(command, *words, "--bearer-token-file", str(token), "--output", output, **env)
        assert ended.returncode in (0, 1)
        assert leaks(ended.stdout, ended.stderr) == []


def test_a_config_that_nobody_can_show(tmp_path: Path) -> None:
    """A model directory whose config.json is a link to somebody's secrets: read as a config, never shown."""
    (tmp_path / "credentials").write_text(
        json.dumps({"model_type": "llama", "api_key": KEY, "hidden_size": KEY})
    )
    (tmp_path / "config.json").symlink_to("credentials")
    with h.HostileServer({"engine": vllm(v1_models=models(str(tmp_path)))}) as server:
        ended = run_program("explain", "--target", server.url("engine"), "--output", "json")
    assert json.loads(ended.stdout)["model_config"]["problem"]["reason"] == "bad_model_config"
    assert leaks(ended.stdout, ended.stderr) == []


ESCAPE = "\x1b[2J\x1b[31mforged"


@pytest.mark.parametrize("command", ["explain", "check"])
def test_no_escape_sequence_reaches_a_terminal(command: str) -> None:
    """A model's name is the engine's to choose, and would be obeyed by the terminal that shows it."""
    text = (
        (LLAMA / "loaded.prom").read_text().replace('model_name="llama"', f'model_name="{ESCAPE}\\nforged"')
    )
    with h.HostileServer({"engine": vllm(text.replace('cache_dtype="', f'cache_dtype="{ESCAPE}'))}) as server:
        words = [server.url("engine")] if command == "check" else ["--target", server.url("engine")]
        ended = run_program(command, *words, "--log-level", "debug")
    assert "forged" in ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr
    assert not any(line.startswith("forged") for line in (ended.stdout + ended.stderr).splitlines())
