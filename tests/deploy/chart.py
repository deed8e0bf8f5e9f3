"""The chart with values that its tests share, rendered by Helm's own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import helm_python as helm

from .objects import documents

ENGINES: Final = {"target": [{"url": "http://vllm-a.llm:8000", "name": "a", "tensor_parallel_size": 2}]}
STANDALONE: Final[Mapping[str, Any]] = {"standalone": {"enabled": True, "config": ENGINES}}
SIDECARS: Final[Mapping[str, Any]] = {"podMonitor": {"enabled": True, "podLabels": {"app": "vllm"}}}
EVERYTHING: Final[Mapping[str, Any]] = {
    "imagePullSecrets": [{"name": "pull"}],
    "standalone": {
        "enabled": True,
        "config": ENGINES,
        "args": ["--no-hub"],
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "volumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "podLabels": {"team": "serving"},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "monitoring",
    },
    "networkPolicy": {"enabled": True, "hub": True},
    "podMonitor": {"enabled": True, "labels": {"release": "kps"}, "cluster": "eu1"},
    "prometheusRule": {
        "enabled": True,
        "labels": {"release": "kps"},
        "overrides": [{"alert": "KVCacheUsageHigh", "value": 0.95, "labels": {"pod": "vllm-batch-0"}}],
    },
    "tests": {"prometheusUrl": "http://prometheus-operated.monitoring:9090"},
}


def rendered(chart: helm.Chart, values: Mapping[str, Any], name: str = "kv") -> list[dict[str, Any]]:
    """All objects of a release in namespace llm."""
    made = chart.render(dict(values), name=name, namespace="llm")
    return [one for path, text in sorted(made.items()) if path.endswith(".yaml") for one in documents(text)]
