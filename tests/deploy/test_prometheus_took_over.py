"""`helm test`: what its pod runs, against a real Prometheus that took things over, and one that did not."""

from __future__ import annotations

import os
import runpy
import socket
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import yaml

from alerts.rules import groups
from deploy.helm.assemble import CHART, RULES
from tests.alerts.promtool import needs
from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

JOB: Final = "podMonitor/llm/kv-kvcache-exporter/0"
GROUPS: Final = [word for group in groups() for word in ("--group", group["name"])]
Check = Callable[..., int]


@pytest.fixture(scope="module")
def check() -> Check:
    """Its main function; it lies in the chart, which is no package."""
    main: Check = runpy.run_path(str(CHART / "files" / "check_prometheus.py"))["main"]
    return main


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With our rules, and jobs named as the operator names them: one target is itself, one is nobody."""
    folder, port, nobody = tmp_path_factory.mktemp("prometheus"), free_port(), free_port()
    jobs = [
        {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]},
        {"job_name": "podMonitor/llm/down/0", "static_configs": [{"targets": [f"127.0.0.1:{nobody}"]}]},
    ]
    config = {"global": {"scrape_interval": "1s"}, "rule_files": [str(RULES)], "scrape_configs": jobs}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        needs("prometheus"),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with Server(command, os.environ, folder / "log", port) as server:
        wait_for(lambda: server.answers("/-/ready"), 60, "Prometheus ready")
        yield server


def test_taken_over(prometheus: Server, check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """All groups, the job, a target that answers."""
    assert check(["--url", prometheus.url, "--timeout", "30", *GROUPS, "--job", JOB, "--up"]) == 0
    assert f"{len(groups())} rule groups and job {JOB}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--group", "kvcache.usage", "--group", "kvcache.other"], "ruleSelector"),
        (["--job", "podMonitor/llm/kv-kvcache-exporter/1"], "podMonitorSelector"),
        (["--job", "podMonitor/llm/down/0", "--up"], "no target up"),
    ],
    ids=["rules", "monitor", "target"],
)
def test_not_taken_over(
    prometheus: Server, check: Check, capsys: pytest.CaptureFixture[str], asked: list[str], told: str
) -> None:
    """It fails, and says which selector to look at."""
    assert check(["--url", prometheus.url, "--timeout", "0", *asked]) == 1
    assert told in capsys.readouterr().err


def test_no_prometheus(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong address is no green test."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert check(["--url", f"http://127.0.0.1:{port}", "--timeout", "0", *GROUPS]) == 1
    assert "does not answer as Prometheus" in capsys.readouterr().err
