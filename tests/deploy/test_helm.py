"""The chart, assembled as users get it and rendered by Helm's own code."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml

from deploy.helm.assemble import CHART, DASHBOARDS, RULES, assemble
from exporter import __version__
from exporter.probing.allow import METADATA
from exporter.settings import ServeSettings

from .chart import ENGINES, EVERYTHING, SIDECARS, STANDALONE, rendered
from .objects import assert_hardened, assert_no_shell, by_kind, check


def standalone_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Its pod's spec."""
    spec: dict[str, Any] = by_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("values", [STANDALONE, SIDECARS, EVERYTHING], ids=["standalone", "sidecars", "all"])
def test_lint(archive: Path, values: Mapping[str, Any]) -> None:
    """What `helm lint --strict` says; an icon is all that may be missing."""
    report = helm.lint(archive, dict(values), strict=True)
    assert not report["errors"]
    assert [m["error"] for m in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("values", [{}, STANDALONE, SIDECARS, EVERYTHING])
def test_every_object_is_valid(chart: helm.Chart, values: Mapping[str, Any]) -> None:
    """For the oldest and newest Kubernetes, and for the operator."""
    objects = rendered(chart, values)
    check(objects)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    assert all(one["metadata"]["namespace"] == "llm" for one in objects)


def test_nothing_is_on_by_default(chart: helm.Chart) -> None:
    """As a library for its named templates it must add nothing to somebody's release."""
    assert rendered(chart, {}) == []


def test_version_is_the_exporters() -> None:
    """An image tag that nobody built is a pod that never starts."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert about["appVersion"] == about["version"] == values["image"]["tag"] == __version__


def test_standalone_is_hardened(chart: helm.Chart) -> None:
    """Nothing that an engine's answer might reach can write, gain rights or talk to the API server."""
    pod = standalone_pod(rendered(chart, EVERYTHING))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert_hardened(container)
    assert_no_shell(container)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    # The hub's cache is the one writable place.
    assert [path for path, mount in mounts.items() if not mount.get("readOnly")] == [
        "/var/cache/kvcache-exporter"
    ]
    assert "emptyDir" in volumes[mounts["/var/cache/kvcache-exporter"]["name"]]


def test_standalone_config_is_what_serve_reads(chart: helm.Chart, tmp_path: Path) -> None:
    """Its ConfigMap is a settings file, strict as they are."""
    config = by_kind(rendered(chart, STANDALONE), "ConfigMap")["data"]["config.yaml"]
    read = ServeSettings(**yaml.safe_load(config))
    assert [(t.url, t.label, t.tensor_parallel_size) for t in read.target] == [
        ("http://vllm-a.llm:8000", "a", 2)
    ]


def test_a_changed_config_restarts_the_pod(chart: helm.Chart) -> None:
    """A pod that goes on with the old targets is noticed by nobody."""

    def annotation(targets: list[dict[str, Any]]) -> str:
        objects = rendered(chart, {"standalone": {"enabled": True, "config": {"target": targets}}})
        template = by_kind(objects, "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert annotation([{"url": "http://a:8000"}]) != annotation([{"url": "http://b:8000"}])


def test_config_from_a_secret(chart: helm.Chart) -> None:
    """No ConfigMap is made beside it."""
    objects = rendered(chart, {"standalone": {"enabled": True, "existingSecret": "engines"}})
    assert not [one for one in objects if one["kind"] == "ConfigMap"]
    config = next(v for v in standalone_pod(objects)["volumes"] if v["name"] == "config")
    assert config["secret"]["secretName"] == "engines"


def test_an_exporter_for_probes_alone(chart: helm.Chart) -> None:
    """Without targets of its own, which must be said: the default would be an engine on 127.0.0.1."""
    allow = {"probe_allow": ["*.llm.svc:8000"]}
    objects = rendered(chart, {"standalone": {"enabled": True, "config": {"target": [], **allow}}})
    config = yaml.safe_load(by_kind(objects, "ConfigMap")["data"]["config.yaml"])
    assert config == {"target": [], **allow}
    with pytest.raises(helm.HelmRenderError, match="without engines"):
        rendered(chart, {"standalone": {"enabled": True, "config": allow}})


@pytest.mark.parametrize(
    ("standalone", "kind"),
    [
        ({"config": ENGINES}, "httpGet"),
        ({"config": {**ENGINES, "web_config_file": "/web/web.yaml"}}, "tcpSocket"),
        ({"existingSecret": "engines", "guarded": True}, "tcpSocket"),
    ],
)
def test_guarded_exporter_is_not_restarted_for_ever(
    chart: helm.Chart, standalone: dict[str, Any], kind: str
) -> None:
    """TLS and users guard health, too, and the kubelet has neither certificate nor password."""
    endpoint = {"scheme": "https", "basicAuth": {"username": {"name": "web", "key": "user"}}}
    values = {
        "standalone": {"enabled": True, **standalone},
        "podMonitor": {"enabled": True, "endpoint": endpoint},
    }
    objects = rendered(chart, values)
    check(objects)
    (container,) = standalone_pod(objects)["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert kind in container[probe]
    (scraped,) = by_kind(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint.items() <= scraped.items()


def test_policy_lets_names_and_more_out_as_told(chart: helm.Chart) -> None:
    """NodeLocal DNS is no pod of kube-system, OpenShift listens elsewhere; a proxy is on no engine port."""
    proxy = {"to": [{"ipBlock": {"cidr": "10.0.0.9/32"}}], "ports": [{"protocol": "TCP", "port": 3128}]}
    dns = {"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": [5353]}
    policy = {"enabled": True, "dns": dns, "extraEgress": [proxy]}
    objects = rendered(chart, {**EVERYTHING, "networkPolicy": policy})
    check(objects)
    first, *_, last = by_kind(objects, "NetworkPolicy")["spec"]["egress"]
    assert first == {
        "to": dns["to"],
        "ports": [{"protocol": "UDP", "port": 5353}, {"protocol": "TCP", "port": 5353}],
    }
    assert last == proxy


def test_service_monitor_and_policy_select_the_pod(chart: helm.Chart) -> None:
    """Three selectors, one set of labels; and a port name that the container has."""
    objects = rendered(chart, EVERYTHING)
    template = by_kind(objects, "Deployment")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    service, policy = by_kind(objects, "Service"), by_kind(objects, "NetworkPolicy")
    monitor = by_kind(objects, "PodMonitor")
    assert service["spec"]["selector"].items() <= labels
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert policy["spec"]["ingress"][0]["ports"][0]["port"] in ports
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] in ports


def test_policy_keeps_the_metadata_service_out(chart: helm.Chart) -> None:
    """Where it lets the exporter out to the hub, not to where clouds hand out credentials."""
    policy = by_kind(rendered(chart, EVERYTHING), "NetworkPolicy")
    blocks = [to["ipBlock"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to]
    assert [block["cidr"] for block in blocks] == ["0.0.0.0/0", "::/0"]
    assert {ip_network(net) for block in blocks for net in block["except"]} == set(METADATA)
    off = rendered(chart, {**EVERYTHING, "networkPolicy": {"enabled": True}})
    assert "ipBlock" not in json.dumps(by_kind(off, "NetworkPolicy"))


def test_rules_are_those_of_alerts(chart: helm.Chart) -> None:
    """Not a copy that went its own way: group for group what alerts/rules has, templates and all."""
    rule = by_kind(rendered(chart, EVERYTHING), "PrometheusRule")
    *groups, own = rule["spec"]["groups"]
    assert groups == yaml.safe_load(RULES.read_text())["groups"]
    assert own["rules"] == [
        {
            "record": "kvcache:alert_threshold:override",
            "expr": "vector(0.95)",
            "labels": {"alert": "KVCacheUsageHigh", "pod": "vllm-batch-0"},
        }
    ]


def test_boards_are_those_of_grafana(chart: helm.Chart) -> None:
    """One ConfigMap for each board, its JSON byte for byte."""
    boards = {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")}
    if not DASHBOARDS.is_dir():
        pytest.skip("no boards yet")
    objects = rendered(chart, {"dashboards": {"enabled": True}})
    check(objects)
    made = {name: text for one in objects for name, text in one["data"].items()}
    assert made == boards
    uids = {json.loads(text)["uid"] for text in made.values()}
    assert uids >= {f"kvcache-{name}" for name in ("capacity", "pressure", "latency", "fleet", "exporter")}
    assert all(one["metadata"]["labels"]["grafana_dashboard"] == "1" for one in objects)


def test_the_source_without_rules_says_what_to_do() -> None:
    """`helm install deploy/helm/kvcache-exporter` would else make an empty PrometheusRule."""
    with (
        helm.Chart.load(CHART) as source,
        pytest.raises(helm.HelmRenderError, match="Assemble it with `make chart`"),
    ):
        source.render({"prometheusRule": {"enabled": True}}, name="kv", namespace="llm")


def test_archive_is_reproducible(tmp_path: Path) -> None:
    """No build time and no builder in it."""

    def members(folder: Path) -> list[tuple[str, int, int, bytes]]:
        with tarfile.open(assemble(folder)) as tar:
            return [
                (one.name, one.mode, int(one.mtime), read.read())
                for one in tar.getmembers()
                if (read := tar.extractfile(one)) is not None
            ]

    first = members(tmp_path / "1")
    assert first == members(tmp_path / "2")
    assert {name.split("/")[0] for name, *_ in first} == {"kvcache-exporter"}
