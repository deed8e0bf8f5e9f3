"""Replicas by name: what the boards show where two hosts call their engines the same."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from grafana import queries as q
from grafana.source import Source
from tests.alerts.promtool import needs

from .boards import COMMITTED

# The exporter's default name for an engine beside it, on two hosts that a plain Prometheus scrapes.
HOSTS: Final = [
    f'kvcache_engine_up{{job="kv", instance="10.0.0.{n}:9844", target="127.0.0.1:8000"}}' for n in (1, 2)
]
NAME: Final = '{target="127.0.0.1:8000"}'


def shows(folder: Path, series: dict[str, str], expr: str, *expected: tuple[str, float]) -> None:
    """Raises AssertionError where the expression gives other samples at the tenth minute."""
    asked = Source("http://unused", 0, 600, 60).filled(expr)
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": asked,
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected],
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def columns() -> dict[str, str]:
    """Heading -> query of the table of replicas."""
    (table,) = [
        one for one in COMMITTED["kvcache-fleet"]["panels"] if one["title"] == "Replicas, the odd ones first"
    ]
    (names,) = [one["options"]["renameByName"] for one in table["transformations"] if one["id"] == "organize"]
    return {names.get(f"Value #{one['refId']}", ""): one["expr"] for one in table["targets"]}


@pytest.mark.parametrize("down", [0, 1])
def test_a_host_that_is_up_does_not_hide_one_of_its_name_that_is_down(tmp_path: Path, down: int) -> None:
    """Two engines in one row: it says so, comes first, and is down as soon as one of them is."""
    series = {host: "0x20" if n == down else "1x20" for n, host in enumerate(HOSTS)}
    shows(tmp_path, series, columns()["State"], (NAME, q.DOWN))
    shows(tmp_path, series, columns()["Of this name"], (NAME, 2))
    shows(tmp_path, series, f"({columns()['Oddness']}) >= 200", (NAME, 300))


def test_a_pod_that_comes_back_under_another_address_is_the_same_replica(tmp_path: Path) -> None:
    """A StatefulSet's pod keeps its name: one row, one engine, and no gap in its line."""
    pod = [host.replace("{", '{pod="vllm-0", ') for host in HOSTS]
    series = {pod[0]: "1x5 stale", pod[1]: "_x6 1x10"}
    name = '{pod="vllm-0", target="127.0.0.1:8000"}'
    shows(tmp_path, series, columns()["State"], (name, q.NOT_TOLD))
    shows(tmp_path, series, columns()["Of this name"], (name, 1))
