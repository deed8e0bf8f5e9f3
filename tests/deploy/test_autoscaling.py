"""Autoscaling: the objects are valid, and the query gives the number of replicas that a hand would."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from exporter import catalogue
from tests.alerts.promtool import needs

from .objects import DEPLOY, check, documents

FOLDER: Final = DEPLOY / "autoscaling"
MAX, FREE, WAITING = (
    catalogue.MAX_SEQUENCES.name,
    catalogue.FREE_SEQUENCES.name,
    catalogue.WAITING_SEQUENCES.name,
)


def keda() -> dict[str, Any]:
    """Its one object."""
    (one,) = documents((FOLDER / "keda.yaml").read_text())
    return one


def query() -> str:
    """What KEDA asks."""
    return str(keda()["spec"]["triggers"][0]["metadata"]["query"])


def adapter_rule() -> dict[str, Any]:
    """The adapter's one rule."""
    (rule,) = yaml.safe_load((FOLDER / "prometheus-adapter.values.yaml").read_text())["rules"]["external"]
    assert isinstance(rule, dict)
    return rule


def test_objects_are_valid() -> None:
    """KEDA's and Kubernetes' own schema."""
    (hpa,) = documents((FOLDER / "hpa.yaml").read_text())
    check([keda(), hpa])
    # KEDA's trigger metadata are strings, whatever they look like.
    assert all(isinstance(value, str) for value in keda()["spec"]["triggers"][0]["metadata"].values())


def test_both_ways_scale_alike() -> None:
    """The adapter's query, its place filled as the adapter does, is KEDA's; so are target and behaviour."""
    rule = adapter_rule()
    assert rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="llm"') == query()
    (hpa,) = documents((FOLDER / "hpa.yaml").read_text())
    (metric,) = hpa["spec"]["metrics"]
    spec = keda()["spec"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert metric["external"]["target"]["averageValue"] == spec["triggers"][0]["metadata"]["threshold"]
    assert hpa["spec"]["behavior"] == spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    bounds = (spec["minReplicaCount"], spec["maxReplicaCount"])
    assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == bounds


@pytest.mark.parametrize("text", [query(), adapter_rule()["seriesQuery"]])
def test_metrics_and_labels_are_ours(text: str) -> None:
    """Each selector names a metric of the catalogue, by labels that it or a scrape in Kubernetes gives."""
    known = {metric.name: {*metric.labels, "namespace", "pod"} for metric in catalogue.CATALOGUE}
    found = re.findall(r"(kvcache_\w+)\{([^}]*)\}", text)
    assert found
    for name, labels in found:
        assert set(re.findall(r"(\w+)(?:=~|!=|=)", labels)) <= known[name], name


def series(pod: str, room: int, free: int | None, waiting: int, engine: str = "0") -> dict[str, str]:
    """One engine rank: what it holds, what is free (None: not told), what waits."""
    labels = f'namespace="llm",pod="{pod}",engine="{engine}",target="127.0.0.1:8000",model_name="m"'
    made = {
        f'{MAX}{{{labels},context="32768"}}': str(room),
        # Another tier, incommensurable: taken along, it would show.
        f'{MAX}{{{labels},context="4096"}}': str(room * 7 + 1),
        f'{FREE}{{{labels},context="4096"}}': "1",
        f"{WAITING}{{{labels}}}": str(waiting),
    }
    if free is not None:
        made[f'{FREE}{{{labels},context="32768"}}'] = str(free)
    return made


# Replicas by hand: (held + waiting + 8) / what one replica holds.
CASES: Final[dict[str, tuple[list[dict[str, str]], float | None]]] = {
    # 18 and 14 held of 20 each, 3 wait: (32 + 3 + 8) / 20 = 2.15, so a third one.
    "full": ([series("vllm-a", 20, 2, 3), series("vllm-b", 20, 6, 0)], 2.15),
    # Idle: the eight alone, 8 / 20.
    "idle": ([series("vllm-a", 20, 20, 0)], 0.4),
    # Two data-parallel ranks are one replica of 10 + 10: (5 + 1 + 4 + 8) / 20 = 0.9.
    "ranks": ([series("vllm-a", 10, 5, 1), series("vllm-a", 10, 6, 0, engine="1")], 0.9),
    # Somebody else's pods are not counted: 8 / 20 again.
    "strangers": ([series("vllm-a", 20, 20, 0), series("sglang-0", 3, 0, 99)], 0.4),
    # Free sequences unknown: no number, rather than one that scales down.
    "unknown": ([series("vllm-a", 20, None, 3)], None),
    "nothing": ([], None),
}


def test_replicas_needed(tmp_path: Path) -> None:
    """All cases by promtool, on hand-made series."""
    rule = {"record": "needed", "expr": query()}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    tests = []
    for name, (rows, expected) in CASES.items():
        samples = [] if expected is None else [{"labels": "needed", "value": expected}]
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": [
                    {"series": spelt, "values": f"{value}x5"} for row in rows for spelt, value in row.items()
                ],
                "promql_expr_test": [{"expr": "needed", "eval_time": "3m", "exp_samples": samples}],
            }
        )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_missing_series_holds_the_replicas() -> None:
    """KEDA's default takes an empty answer for 0, and scales down an engine that it cannot see."""
    assert keda()["spec"]["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
