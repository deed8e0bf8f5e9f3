"""The README's way to a page on VMs, command by command, with the real Prometheus and Alertmanager."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx
import pytest
import yaml

from tests.alerts.promtool import needs
from tests.rig.server import free_port
from tests.rig.waiting import wait_for

from .objects import DEPLOY, ROOT

README: Final = DEPLOY / "README.md"
UNIT: Final = DEPLOY / "vm" / "kvcache-exporter.service"
PATIENCE_S: Final = 90.0
# The exporter, for this test: an engine that is gone is down after two seconds, not thirty.
HURRIED: Final = "from exporter import target, cli; target.STALE_SECONDS = 2.0; raise SystemExit(cli.main())"


def blocks() -> list[str]:
    """The commands that the README marks as tried here, in order."""
    return re.findall(r"<!-- tried: run -->\n```sh\n(.*?)```", README.read_text(), re.S)


def hurried_copy(folder: Path) -> None:
    """deploy/ and alerts/ as they are, but for waits: seconds instead of minutes."""
    for name in ("deploy", "alerts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def change(path: str, *changes: tuple[str, str]) -> None:
        text = (folder / path).read_text()
        for pattern, put in changes:
            text, times = re.subn(pattern, put, text)
            assert times, (path, pattern)
        (folder / path).write_text(text)

    change("deploy/vm/prometheus.yaml", (r"_interval: \w+", "_interval: 1s"))
    change("alerts/rules/kvcache.rules.yaml", (r"(interval|for): \w+", r"\1: 1s"))
    change("alerts/alertmanager.example.yaml", (r"(group_wait|group_interval): \w+", r"\1: 1s"))


def install(folder: Path) -> Path:
    """What the first block would have made, of this environment."""
    programs = folder / "bin"
    programs.mkdir()
    for name, words in (("python", '"$@"'), ("kvcache-exporter", f'-c "{HURRIED}" "$@"')):
        script = programs / name
        script.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {words}\n")
        script.chmod(0o755)
    return programs


class Terminal(AbstractContextManager["Terminal"]):
    """A shell that runs all blocks one after the other, and waits for a key before each that kills."""

    def __init__(self, folder: Path, commands: str) -> None:
        self._folder, self._commands = folder, commands

    def __enter__(self) -> Self:
        with (self._folder / "said").open("wb") as said, (self._folder / "log").open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash", "-eu", "-c", self._commands],
                cwd=self._folder,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "no_proxy": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate(timeout=20)

    def screen(self) -> str:
        """All it has printed; raises RuntimeError if a command failed."""
        if self._shell.poll():
            raise RuntimeError((self._folder / "log").read_text()[-4000:])
        return (self._folder / "said").read_text()

    def key(self) -> None:
        """Go on."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"\n")
        self._shell.stdin.flush()

    def end(self) -> int:
        """Its exit status, once all blocks are through."""
        return self._shell.wait(60)


def test_the_readmes_commands_end_in_a_page(tmp_path: Path) -> None:
    """Each command as written but for ports, folders and waits, which the machine's other users have too."""
    for name in ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "curl"):
        needs(name)
    hurried_copy(tmp_path)
    ports = {port: free_port() for port in ("8000", "9844", "9090", "9093", "9099")}
    for path in (*(tmp_path / "deploy" / "vm").glob("*.yaml"), tmp_path / "alerts/alertmanager.example.yaml"):
        path.write_text(_with(path.read_text(), ports))
    text = "\n".join(f"read -r _\n{block}" if "kill" in block else block for block in blocks())
    text = _with(text, ports)
    for there, here in {
        "/opt/kvcache-exporter/bin": str(install(tmp_path)),
        "/tmp/kvcache-": f"{tmp_path}/data-",
        "serve --config-file": f"serve --listen-address 127.0.0.1:{ports['9844']} --config-file",
    }.items():
        assert there in text
        text = text.replace(there, here)

    with Terminal(tmp_path, text) as terminal:

        def engine_up() -> bool:
            terminal.screen()
            query = {"query": "kvcache_engine_up == 1"}
            with suppress(httpx.HTTPError):
                url = f"http://127.0.0.1:{ports['9090']}/api/v1/query"
                answer = httpx.get(url, params=query, trust_env=False).raise_for_status()
                found = answer.json()["data"]["result"]
                return [one["metric"]["target"] for one in found] == ["gpu-01"]
            return False

        wait_for(engine_up, PATIENCE_S, "Prometheus saw the engine up")
        wait_for(lambda: "gpu-01" in terminal.screen(), PATIENCE_S, "the explanation")
        terminal.key()
        page = re.compile(r"(?m)^/page firing KVCacheEngineDown .*$")
        wait_for(lambda: page.search(terminal.screen()), PATIENCE_S, "the page")
        told = page.search(terminal.screen())
        assert told is not None
        assert told[0] in README.read_text().splitlines()
        terminal.key()
        assert terminal.end() == 0


def _with(text: str, ports: dict[str, int]) -> str:
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda found: str(ports[found[0]]), text)


def test_every_block_is_marked() -> None:
    """Nothing in part b is silently left out of the test above."""
    part = README.read_text().partition("## b.")[2].partition("## c.")[0]
    assert len(re.findall(r"```sh", part)) == len(re.findall(r"<!-- tried: (?:run|skip) -->\n```sh", part))
    assert len(blocks()) == 6


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, its program replaced by one that exists here."""
    text, times = re.subn(r"(?m)^ExecStart=/opt/\S+", f"ExecStart={sys.executable}", UNIT.read_text())
    assert times == 1
    made = tmp_path / UNIT.name
    made.write_text(text)
    return made


def test_unit_is_understood(unit: Path) -> None:
    """Every line: a misspelt one is skipped with a warning, and protects nothing."""
    done = subprocess.run(
        [needs("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr, done.stderr


def test_unit_is_hardened(unit: Path) -> None:
    """Exposure below 2.0 of 10, as systemd counts it, and a user of its own."""
    assert "DynamicUser=yes" in unit.read_text().splitlines()
    done = subprocess.run(
        [needs("systemd-analyze"), "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_unit_runs_what_the_readme_installs() -> None:
    """Program and settings file lie where the commands put them."""
    text, readme = UNIT.read_text(), README.read_text()
    start = re.search(r"(?m)^ExecStart=(\S+) serve --config-file (\S+)", text)
    assert start is not None
    assert f"{Path(start[1]).parent}/pip install" in readme
    assert f"deploy/vm/config.yaml {start[2]}" in readme


def test_settings_name_their_engine() -> None:
    """On hosts without pods only the name keeps engines of two hosts apart."""
    from exporter.settings import ServeSettings

    read = ServeSettings(**yaml.safe_load((DEPLOY / "vm" / "config.yaml").read_text()))
    assert [target.name for target in read.target] == ["gpu-01"]
