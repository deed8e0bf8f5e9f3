"""New settings without a restart: what did not change goes on, what is broken changes nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from . import hostile as h
from .engines import vllm
from .page import Page
from .running import Program, run_program
from .waiting import wait_for

SUCCESSFUL = "kvcache_exporter_config_last_reload_successful"
TIMESTAMP = "kvcache_exporter_config_last_reload_success_timestamp_seconds"
FETCHES = "kvcache_exporter_fetches_total"
SAMPLED = "kvcache_sampled_usage_ratio_count"
# Long enough for many polls to have been counted, so that a counter that began anew is seen.
MANY_POLLS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({name: vllm() for name in "abc"}) as running:
        yield running


class Settings:
    """The settings file."""

    def __init__(self, file: Path, server: h.HostileServer) -> None:
        self.file, self._server = file, server

    def write(self, *names: str, more: str = "", **of_target: str) -> None:
        rows = [
            f"  - {{name: {name}, url: '{self._server.url(name)}'{of_target.get(name, '')}}}"
            for name in names
        ]
        self.file.write_text("hub: false\n" + more + "target:\n" + "\n".join(rows) + "\n")


@pytest.fixture
def settings(server: h.HostileServer, tmp_path: Path) -> Settings:
    made = Settings(tmp_path / "settings.yaml", server)
    made.write("a", "b")
    return made


@pytest.fixture
def program(settings: Settings, tmp_path: Path) -> Iterator[Program]:
    with Program(tmp_path / "log", "--config-file", str(settings.file), unstretched=True) as running:
        running.wait(lambda p: p.values("kvcache_engine_up") == [1.0, 1.0], "the engines read")
        yield running


def reload(program: Program, method: str = "POST") -> httpx.Response:
    return httpx.request(method, program.url + "/-/reload", trust_env=False, timeout=20)


def test_unchanged_target_goes_on(program: Program, settings: Settings) -> None:
    """b goes, c comes, a changes nothing: its counters and histograms are the same ones."""
    before = program.wait_for_polls("a", MANY_POLLS)
    settings.write("a", "c")
    assert reload(program).status_code == 200
    seen = program.wait(lambda p: p.values("kvcache_engine_up", target="c") == [1.0], "the new target")
    assert seen.all("kvcache_engine_up", target="b") == []
    for counter in (FETCHES, SAMPLED):
        assert seen.value(counter, target="a") >= before.value(counter, target="a") >= MANY_POLLS
    assert seen.value(TIMESTAMP) > before.value(TIMESTAMP)
    assert program.get("/-/config?output=json").json()["settings"]["target"][1]["name"] == "c"
    # The one that is gone is polled no more.
    assert program.get("/metrics?target=b").status_code == 404


def test_changed_target_begins_anew_and_follows_what_is_said(program: Program, settings: Settings) -> None:
    """A block size that contradicts the engine shows that the new word arrived."""
    before = program.wait_for_polls("b", MANY_POLLS)
    settings.write("a", "b", a=", block_size: 7")
    assert reload(program, "PUT").status_code == 200
    seen = program.wait(
        lambda p: p.all("kvcache_exporter_input_contradiction", target="a", input="block_size"),
        "the new word",
    )
    assert seen.value(FETCHES, target="b") >= before.value(FETCHES, target="b")
    assert seen.value(FETCHES, target="a") < MANY_POLLS


def test_time_limits_change_without_a_new_beginning(program: Program, settings: Settings) -> None:
    """A longer timeout is no other way to count."""
    before = program.wait_for_polls("a", MANY_POLLS)
    settings.write("a", "b", more="timeout: 7\n")
    assert reload(program).status_code == 200
    assert program.scrape().value(FETCHES, target="a") >= before.value(FETCHES, target="a")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("poll_intervall: 2\n", "poll_intervall"),
        ("target: [{url: 'http://user:hunter2@a:1'}]\n", "target.0.url"),
        ("poll_interval: [2\n", "not YAML"),
        ("listen_address: ':1'\n", None),  # given as a flag, which wins: nothing changes
        ("state_directory: /tmp\n", "state_directory"),
        (None, "No such file"),
    ],
)
def test_broken_file_then_mended(
    program: Program, settings: Settings, text: str | None, named: str | None
) -> None:
    """500 with the reason, 0 on /metrics, the old settings in force; and back once it is mended."""
    before = program.wait_for_polls("a", 1)
    if text is None:
        settings.file.unlink()
    else:
        settings.file.write_text(text)
    answer = reload(program)
    if named is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 500
    assert named in answer.text
    assert "hunter2" not in answer.text + program.output()
    seen = program.wait_for_polls("a", 1)
    assert seen.value(SUCCESSFUL) == 0
    assert seen.value(TIMESTAMP) == before.value(TIMESTAMP)
    assert seen.series("b") == before.series("b")
    settings.write("a")
    assert reload(program).status_code == 200
    mended = program.scrape()
    assert mended.value(SUCCESSFUL) == 1
    assert mended.all("kvcache_engine_up", target="b") == []


def test_hangup_signal_reloads(program: Program, settings: Settings) -> None:
    """As every daemon does; a broken file does not end it."""
    settings.file.write_text("nonsense: 1\n")
    assert program.process is not None
    program.process.send_signal(signal.SIGHUP)
    program.wait(lambda p: p.value(SUCCESSFUL) == 0, "the failed reload")
    settings.write("a", "b", "c")
    program.process.send_signal(signal.SIGHUP)
    program.wait(lambda p: p.values("kvcache_engine_up") == [1.0] * 3, "the new target")


def test_only_post_and_put_reload(program: Program) -> None:
    """A link that someone follows must change nothing."""
    assert program.get("/-/reload").status_code == 405
    assert reload(program, "DELETE").status_code == 405


def test_origin_of_each_setting_is_shown(program: Program) -> None:
    """Flag over file over default, as it was decided."""
    told = program.get("/-/config?output=json").json()["from"]
    assert (told["listen_address"], told["target"], told["timeout"]) == ("flag", "file", "default")


# -- --check-config --------------------------------------------------------------------


def test_check_config(server: h.HostileServer, tmp_path: Path) -> None:
    """Status 0 or 1, without a listening socket: the port is taken, and it says nothing about that."""
    settings = Settings(tmp_path / "settings.yaml", server)
    settings.write("a")
    words = (
        "serve", "--check-config", "--config-file", str(settings.file),
        "--listen-address", f"127.0.0.1:{server.port}",
    )  # fmt: skip
    good = run_program(*words)
    assert (good.returncode, good.stdout, good.stderr) == (0, "the settings are good\n", "")
    settings.file.write_text("nonsense: 1\n")
    bad = run_program(*words)
    assert bad.returncode == 1
    assert "nonsense" in bad.stderr
    settings.write("a")
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_users: {alice: hunter2}\n")
    worse = run_program(*words, f"--web.config.file={web}")
    assert worse.returncode == 1
    assert "bcrypt" in worse.stderr
    assert "hunter2" not in worse.stderr


def test_no_targets_at_all_is_a_way_to_run(tmp_path: Path) -> None:
    """An exporter for /probe alone; it serves, and a reload may give it some."""
    file = tmp_path / "settings.yaml"
    file.write_text("target: []\n")
    with Program(tmp_path / "log", "--config-file", str(file)) as running:
        page: Page = running.scrape()
        assert page.all("kvcache_engine_up") == []
        assert running.get("/sd").json() == []
        wait_for(lambda: running.get("/-/ready").is_success, "ready")
