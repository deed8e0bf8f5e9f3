"""Example configurations for fleets: promtool's word, and labels that keep replicas apart."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from exporter import catalogue
from tests.alerts.promtool import needs

from .objects import DEPLOY, ROOT

FLEET: Final = DEPLOY / "fleet"
PAIRS: Final = {"prometheus-ha.yaml": "__replica__", "thanos.yaml": "prometheus_replica"}


def config(name: str) -> dict[str, Any]:
    """A configuration of the folder."""
    read: dict[str, Any] = yaml.safe_load((FLEET / name).read_text())
    return read


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    """Its answer."""
    return subprocess.run([needs("promtool"), *words], capture_output=True, text=True, check=False)


def checkable(name: str, folder: Path) -> str:
    """A copy for promtool: Debian's is built without Kubernetes discovery, and files must exist."""
    read = config(name)
    for job in read["scrape_configs"]:
        if job.pop("kubernetes_sd_configs", None) is not None:
            job["static_configs"] = [{"targets": ["127.0.0.1:9844"]}]
    read["rule_files"] = [str((FLEET / path).resolve()) for path in read.get("rule_files", ())]
    (folder / "password").write_text("x")
    copy = folder / name
    copy.write_text(yaml.safe_dump(read).replace("/etc/prometheus/password", str(folder / "password")))
    return str(copy)


@pytest.mark.parametrize("name", [*PAIRS, "sharded.yaml"])
def test_prometheus_reads_it(name: str, tmp_path: Path) -> None:
    """The rule file that it names included."""
    done = promtool("check", "config", checkable(name, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("rule files found" in done.stdout) == (name in PAIRS)


def test_agent_reads_it(tmp_path: Path) -> None:
    """In agent mode, where rules and alerting are refused."""
    done = promtool("check", "config", "--agent", checkable("agent.yaml", tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    refused = promtool("check", "config", "--agent", checkable("thanos.yaml", tmp_path))
    assert "not allowed in agent mode" in refused.stderr + refused.stdout


@pytest.mark.parametrize("name", [*PAIRS, "agent.yaml"])
def test_pods_are_found_by_the_sidecars_port(name: str) -> None:
    """The port's name is the one that chart and component give it; the labels those that rules join on."""
    (job,) = config(name)["scrape_configs"]
    assert job["kubernetes_sd_configs"] == [{"role": "pod"}]
    steps = job["relabel_configs"]
    sidecar = yaml.safe_load((DEPLOY / "kustomize" / "sidecar" / "sidecar.yaml").read_text())
    (port,) = sidecar["spec"]["template"]["spec"]["initContainers"][0]["ports"]
    by_port = {
        "action": "keep",
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": port["name"],
    }
    assert by_port in steps
    made = {step["target_label"]: step["source_labels"] for step in steps if "target_label" in step}
    assert made == {
        "namespace": ["__meta_kubernetes_namespace"],
        "pod": ["__meta_kubernetes_pod_name"],
    }


@pytest.mark.parametrize(("name", "label"), PAIRS.items())
def test_pair_label_is_nobody_elses(name: str, label: str) -> None:
    """Folding a label that a series of ours carries would fold engines: `replica` is Ray's."""
    external = config(name)["global"]["external_labels"]
    assert set(external) == {"cluster", label}
    ours = {one for metric in catalogue.CATALOGUE for one in metric.labels}
    assert "replica" in ours
    assert not set(external) & ours


@pytest.mark.parametrize(("name", "label"), PAIRS.items())
def test_alerts_of_a_pair_are_equal(name: str, label: str) -> None:
    """The pair's label, and it alone, is taken from alerts, or every page comes twice."""
    assert config(name)["alerting"]["alert_relabel_configs"] == [{"action": "labeldrop", "regex": label}]


def test_mimir_folds_the_labels_that_the_pair_has() -> None:
    """Three files, one pair of names."""
    limits = config("mimir.yaml")["limits"]
    external = config("prometheus-ha.yaml")["global"]["external_labels"]
    assert {limits["ha_cluster_label"], limits["ha_replica_label"]} == set(external)
    assert f"--query.replica-label={PAIRS['thanos.yaml']}" in (FLEET / "thanos.yaml").read_text()


def test_remote_write_lets_everything_through_that_rules_read() -> None:
    """Our metrics and recorded series alike."""
    (keep,) = config("prometheus-ha.yaml")["remote_write"][0]["write_relabel_configs"]
    rules = yaml.safe_load((ROOT / "alerts" / "rules" / "kvcache.rules.yaml").read_text())["groups"]
    names = [rule["record"] for group in rules for rule in group["rules"] if "record" in rule]
    names += [metric.name for metric in catalogue.CATALOGUE]
    assert names
    assert [name for name in names if not re.fullmatch(keep["regex"], name)] == []
    assert not re.fullmatch(keep["regex"], "go_goroutines")


def relabelled(job: str) -> list[dict[str, str]]:
    """Labels of each target of a job that is kept, as Prometheus would scrape it."""
    done = promtool("check", "service-discovery", str(FLEET / "sharded.yaml"), job, "--timeout=3s")
    assert done.returncode == 0, done.stderr
    return [one["labels"] for one in json.loads(done.stdout) if one.get("labels")]


def test_every_engine_has_one_exporter() -> None:
    """The exporter's address by the engine's; the engine's own goes on as parameter and instance."""
    found = relabelled("kvcache-probe")
    assert {one["__param_target"] for one in found} == {
        f"http://vllm-{number}.llm.svc.example:8000" for number in range(4)
    }
    exporters = {f"kvcache-exporter-{number}:9844" for number in range(3)}
    assert {one["__address__"] for one in found} <= exporters
    assert len({one["__address__"] for one in found}) > 1
    assert all(f"http://{one['instance']}" == one["__param_target"] for one in found)
    assert all(one["__metrics_path__"] == "/probe" for one in found)


def test_a_shard_of_prometheus_has_part_of_the_exporters() -> None:
    """Not all, not none; what it lacks, number 1 has."""
    kept = relabelled("kvcache-exporter")
    assert 0 < len(kept) < 4
