"""The Alertmanager example: it loads, every alert goes where it should, inhibitions name real alerts."""

from __future__ import annotations

import re
import subprocess
from typing import Any, Final

import pytest
import yaml

from alerts.rules import HERE, groups

from . import promql
from .promtool import needs
from .test_contract import labels_of

CONFIG: Final = HERE / "alertmanager.example.yaml"
ALERTS: Final = [rule for group in groups() for rule in group["rules"] if "alert" in rule]
_RECEIVER: Final = {"critical": "page", "warning": "tickets", "info": "digest"}


def _amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([needs("amtool"), *arguments], capture_output=True, text=True, check=False)


def test_it_loads() -> None:
    """As amtool sees it, which is as Alertmanager does."""
    checked = _amtool("check-config", str(CONFIG))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_has_its_route(rule: dict[str, Any]) -> None:
    """A page that ends in the ticket queue wakes nobody."""
    severity = rule["labels"]["severity"]
    routed = _amtool(
        *("config", "routes", "test", "--config.file", str(CONFIG)),
        *(f"alertname={rule['alert']}", f"severity={severity}"),
    )
    assert routed.stdout.split() == [_RECEIVER[severity]], routed.stderr


def _matches(matchers: list[str], labels: dict[str, str]) -> bool:
    for matcher in matchers:
        found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
        assert found is not None, matcher
        name, how, value = found.groups()
        same = re.fullmatch(value, labels.get(name, "")) is not None
        if same != (how in ("=", "=~")):
            return False
    return True


def _silenced_by(source: str) -> set[str]:
    rules = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
    return {
        rule["alert"]
        for inhibition in rules
        if _matches(inhibition["source_matchers"], {"alertname": source})
        for rule in ALERTS
        if _matches(inhibition["target_matchers"], {"alertname": rule["alert"]})
    }


def test_engine_down_silences_the_rest() -> None:
    """All but itself, and the exporter's, which is a fault of its own."""
    assert _silenced_by("KVCacheEngineDown") == {rule["alert"] for rule in ALERTS} - {
        "KVCacheEngineDown",
        "KVCacheExporterDown",
    }


def test_usage_critical_silences_its_warnings() -> None:
    """Whoever is paged for a full pool needs no ticket that it was or will be full."""
    assert _silenced_by("KVCacheUsageHigh") == {"KVCacheUsageHighP95", "KVCacheWillFill"}


def test_a_stuck_engine_silences_what_its_gauges_say() -> None:
    """Usage frozen at 0.99 with nothing running is not a full pool (a case seen in the field)."""
    assert {"KVCacheUsageHigh", "KVCacheUsageHighP95"} <= _silenced_by("KVCacheEngineStuck")


def test_missing_input_silences_what_is_derived_from_it() -> None:
    """And nothing that the engine itself tells."""
    silenced = _silenced_by("KVCacheInputMissing")
    assert "KVCacheArithmeticMismatch" in silenced
    assert not silenced & {"KVCacheUsageHigh", "KVCachePreemptions", "KVCacheEngineDown"}
    # An exporter without config.json has this alert for ever, and the pool's size from the engine.
    assert "KVCacheCapacityDropped" not in silenced


def test_one_host_silences_no_other() -> None:
    """Every host's engine is 127.0.0.1:8000 by default, and a plain Prometheus adds no pod: instance is left.

    A label that an alert does not carry counts as empty on both sides, so each has to carry it.
    """
    for inhibition in yaml.safe_load(CONFIG.read_text())["inhibit_rules"]:
        assert "instance" in inhibition["equal"], inhibition
    for rule in ALERTS:
        assert "instance" in (promql.labels(promql.parse(rule["expr"]), labels_of) or set()), rule["alert"]


def test_inhibitions_name_alerts_that_exist() -> None:
    """A misspelt name in a target silences nothing, unnoticed."""
    named = set(re.findall(r"KVCache[A-Za-z0-9]+", CONFIG.read_text()))
    assert named <= {rule["alert"] for rule in ALERTS}
