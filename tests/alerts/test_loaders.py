"""What else loads the rules: vmalert and VictoriaMetrics for real, the others by what they refuse."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule

from alerts.rules import HERE, groups
from exporter.recording.replay import write_model
from tests.integration.running import Program
from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

from . import promql
from .promtool import needs
from .recorded import RECORDING, Tape, recorded_engine
from .stand import PATIENCE_S, Inbox, Prometheus, alertmanager, quick_rules

PLAIN: Final = HERE / "rules" / "kvcache.rules.yaml"
ALERT: Final = "KVCacheUsageHigh"
RULES: Final[list[dict[str, Any]]] = [rule for group in groups() for rule in group["rules"]]


def test_plain_file_has_no_field_of_one_loader_only() -> None:
    """Mimir's tool and vmalert refuse a file with a field they do not know; these are in all of them."""
    document = yaml.safe_load(PLAIN.read_text())
    assert set(document) == {"groups"}
    for group in document["groups"]:
        assert set(group) == {"name", "interval", "rules"}
        for rule in group["rules"]:
            if "record" in rule:
                assert set(rule) <= {"record", "expr", "labels"}
            else:
                assert set(rule) == {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}


def test_names_are_unique() -> None:
    """Mimir refuses two groups of a name; two rules of a name and labels write over each other."""
    assert max(Counter(group["name"] for group in groups()).values()) == 1
    same = Counter(
        (rule.get("record", rule.get("alert")), tuple(sorted(rule.get("labels", {}).items())))
        for rule in RULES
    )
    assert [rule for rule, times in same.items() if times > 1] == []


def test_groups_are_small() -> None:
    """Mimir takes 20 rules to a group and 70 groups to a tenant unless it is told otherwise."""
    assert len(groups()) < 70
    assert max(len(group["rules"]) for group in groups()) <= 20


def test_recorded_names_have_a_colon() -> None:
    """Mimir's tool complains of a recorded series that looks like one that somebody exports."""
    assert all(re.fullmatch(r"[a-z_]+(:[a-z0-9_]+)+", rule["record"]) for rule in RULES if "record" in rule)


def test_durations_have_one_unit() -> None:
    """Every loader reads 90s, not every one reads 1m30s or 1.5m."""
    for group in groups():
        found = [group["interval"]]
        for rule in group["rules"]:
            found += [rule[key] for key in ("for", "keep_firing_for") if key in rule]
        assert all(re.fullmatch(r"[1-9]\d*[smhd]", one) for one in found), group["name"]


def test_another_parser_reads_every_expression() -> None:
    """PromQL as such, not what one Prometheus puts up with."""
    for rule in RULES:
        assert promql.names(rule["expr"])


def test_operator_object_is_one() -> None:
    """The object's own schema (CustomResourceDefinition of the operator) reads it and leaves nothing out."""
    document = yaml.safe_load((HERE / "rules" / "kvcache.prometheusrule.yaml").read_text())
    read = PrometheusRule.model_validate(document)
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == document


def _for_old_vmalert(document: Any) -> Any:
    """``keep_firing_for`` came with vmalert 1.92, and distributions have older ones."""
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.pop("keep_firing_for", None)
    return document


def test_vmalert_accepts_the_rules(tmp_path: Path) -> None:
    """It checks expressions as MetricsQL and the texts as templates."""
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(_for_old_vmalert(yaml.safe_load(PLAIN.read_text()))))
    done = subprocess.run(
        [needs("vmalert"), f"-rule={file}", "-dryRun"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _victoria(folder: Path, target: str) -> Server:
    """A VictoriaMetrics that scrapes as the Prometheus of these tests does."""
    labels = {"namespace": "llm", "pod": "p-0"}
    scrape = {
        "job_name": "kv",
        "scrape_interval": "1s",
        "static_configs": [{"targets": [target], "labels": labels}],
    }
    (folder / "scrape.yaml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    port = free_port()
    command = [
        needs("victoria-metrics"),
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-storageDataPath={folder / 'victoria'}",
        f"-promscrape.config={folder / 'scrape.yaml'}",
        "-search.latencyOffset=0s",
        "-search.disableCache",
    ]
    return Server(command, os.environ, folder / "victoria.log", port)


def _vmalert(folder: Path, victoria: Server, notifier: Server) -> Server:
    port = free_port()
    (folder / "vm-rules.yaml").write_text(
        yaml.safe_dump(_for_old_vmalert({"groups": quick_rules(ALERT)}), width=1000)
    )
    command = [
        needs("vmalert"),
        f"-rule={folder / 'vm-rules.yaml'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        f"-datasource.url={victoria.url}",
        f"-remoteWrite.url={victoria.url}",
        f"-remoteRead.url={victoria.url}",
        "-remoteWrite.flushInterval=200ms",
        f"-notifier.url={notifier.url}",
        "-evaluationInterval=1s",
    ]
    return Server(command, os.environ, folder / "vmalert.log", port)


def _recorded(server: Server, selector: str) -> set[str]:
    """Names of the series that rules made there."""
    query = {"query": f"count by (__name__) ({selector})"}
    answer = httpx.get(f"{server.url}/api/v1/query", params=query, timeout=20, trust_env=False)
    return {one["metric"]["__name__"] for one in answer.raise_for_status().json()["data"]["result"]}


def test_victoriametrics_makes_what_prometheus_makes(tmp_path: Path) -> None:
    """MetricsQL is PromQL with differences: both must have the same series and send the same page."""
    for program in ("prometheus", "prometheus-alertmanager", "victoria-metrics", "vmalert"):
        needs(program)
    tape = Tape()
    with recorded_engine(tape) as url, Inbox() as inbox, alertmanager(inbox, tmp_path) as manager:
        settings = Program.targets({"vllm-a": url}, tmp_path)
        config = ["--model-config", str(write_model(RECORDING, tmp_path / "model"))]
        with (
            Program(tmp_path / "exporter.log", *settings, *config, unstretched=True) as exporter,
            Prometheus(quick_rules(ALERT), tmp_path, [exporter.listen]) as prometheus,
            _victoria(tmp_path, exporter.listen) as victoria,
        ):
            prometheus.wait_ready()
            wait_for(lambda: victoria.answers("/health"), PATIENCE_S, "VictoriaMetrics ready")
            with _vmalert(tmp_path, victoria, manager) as vmalert:
                wait_for(lambda: vmalert.answers("/health"), PATIENCE_S, "vmalert ready")
                # Idle, then busy, so that counters have risen; the last stop is a full pool, which it stays.
                tape.wind(12.0)
                prometheus.wait_for(lambda: bool(prometheus.query("kvcache_usage_ratio > 0")), "work")
                tape.show(1.0)
                prometheus.wait_state(ALERT, "firing")
                ours = '{__name__=~"kvcache:.*"}'
                prometheus.wait_for(
                    lambda: _recorded(prometheus, ours) == _recorded(victoria, ours) != set(),
                    "the same recorded series",
                )

                path, fired = inbox.wait(ALERT, "firing")
                assert path == "/page"
                text = fired["annotations"]["description"]
                assert text.startswith("100% of the KV cache pool is in use, threshold 85%.")
                assert fired["labels"]["target"] == "vllm-a"
                errors = [
                    sample
                    for sample in vmalert.scrape().samples
                    if sample.name.endswith(("_rules_error", "execution_errors_total")) and sample.value
                ]
                assert errors == []
