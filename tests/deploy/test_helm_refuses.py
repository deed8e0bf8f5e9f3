"""Values that the chart refuses, with what to set instead."""

from __future__ import annotations

from typing import Any

import helm_python as helm
import pytest

from .chart import ENGINES, EVERYTHING, SIDECARS, STANDALONE, rendered


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"standalone": {"enabled": True}}, "without engines"),
        (
            {"standalone": {"enabled": True, "config": ENGINES, "existingSecret": "x"}},
            "the exporter reads one file",
        ),
        (
            {"standalone": {"enabled": True, "config": {**ENGINES, "listen_address": ":1"}}},
            "port 9844",
        ),
        (
            {"standalone": {"enabled": True, "config": ENGINES, "args": ["--web.config.file=/w.yaml"]}},
            "name it in standalone.config.web_config_file",
        ),
        (
            {
                "standalone": {"enabled": True, "config": {**ENGINES, "web_config_file": "/w.yaml"}},
                "podMonitor": {"enabled": True},
            },
            "how Prometheus gets in",
        ),
        ({"networkPolicy": {"enabled": True}}, "would cut the engine off from its users"),
        ({"podMonitor": {"enabled": True}}, "selects nothing"),
        ({**STANDALONE, **SIDECARS}, "a release for each"),
        ({**STANDALONE, "podMonitor": {"enabled": True, "namespaces": ["x"]}}, "is for sidecars"),
        (
            {"prometheusRule": {"overrides": EVERYTHING["prometheusRule"]["overrides"]}},
            "nothing would read them",
        ),
        ({"tests": {"prometheusUrl": "http://p:9090"}}, "has nothing to look for"),
    ],
)
def test_contradictions_are_refused(chart: helm.Chart, values: dict[str, Any], told: str) -> None:
    """With what to set, not with an object that does nothing."""
    with pytest.raises(helm.HelmRenderError, match=told):
        rendered(chart, values)


@pytest.mark.parametrize(
    "values",
    [
        {"podmonitor": {"enabled": True}},
        {"standalone": {"enabled": "yes"}},
        {"standalone": {"replicas": 2}},
        {"image": {"digest": "latest"}},
        {"podMonitor": {"interval": "15"}},
        {"sidecar": {"target": "http://user:secret@engine:8000"}},
        {"networkPolicy": {"engines": {"ports": [0]}}},
        {
            "prometheusRule": {
                "overrides": [{"alert": "KVCacheUsageHigh", "value": "1", "labels": {"pod": "b"}}]
            }
        },
    ],
    ids=str,
)
def test_schema_refuses(chart: helm.Chart, values: dict[str, Any]) -> None:
    """Misspelt keys and impossible values, before anything is rendered."""
    with pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values(values))


def test_schema_knows_every_value(chart: helm.Chart) -> None:
    """The defaults pass, and `global`, which Helm adds to a dependency's values."""
    chart.validate_schema(chart.merge_values({"global": {"a": 1}}))
