"""The sidecar as a component, rendered by kubectl into each example."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from exporter import __version__
from exporter.settings import ServeSettings

from .objects import DEPLOY, assert_hardened, assert_no_shell, by_kind, check, documents, kustomized

KUSTOMIZE: Final = DEPLOY / "kustomize"
EXAMPLES: Final = sorted(path.name for path in (KUSTOMIZE / "examples").iterdir())
# Where a kind keeps the pod that gets the exporter.
POD: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "LeaderWorkerSet": ("spec", "leaderWorkerTemplate", "leaderTemplate"),
}


def template(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod template of a workload."""
    for key in POD[one["kind"]]:
        one = one[key]
    return one


def patched(example: str) -> dict[str, Any]:
    """The one workload of an example that has the sidecar."""
    found = [one for one in documents(kustomized(KUSTOMIZE / "examples" / example)) if sidecars(one)]
    assert len(found) == 1
    return found[0]


def sidecars(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its init containers that are the exporter."""
    inits = template(one)["spec"].get("initContainers", ())
    return [container for container in inits if container["name"] == "kvcache-exporter"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_says_where_the_image_goes(example: str) -> None:
    """The sidecar starts first: an image that nobody can pull keeps the engine down."""
    (image,) = yaml.safe_load((KUSTOMIZE / "examples" / example / "kustomization.yaml").read_text())["images"]
    (sidecar,) = sidecars(patched(example))
    assert sidecar["image"] == f"{image['newName']}:{image['newTag']}"
    assert image["newTag"] == __version__
    assert sidecar["image"].startswith(image["name"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_valid_and_has_one_hardened_sidecar(example: str) -> None:
    """For Kubernetes, and for the engine beside it, which keeps all it had."""
    objects = documents(kustomized(KUSTOMIZE / "examples" / example))
    check(objects)
    pod = template(patched(example))["spec"]
    if patched(example)["kind"] == "LeaderWorkerSet":  # no schema for it, but for the pod in it
        check([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "leader"}, "spec": pod}])
    (sidecar,) = sidecars(patched(example))
    assert sidecar["restartPolicy"] == "Always"
    assert not [key for key in sidecar if key.endswith("Probe")]
    assert_hardened(sidecar)
    assert_no_shell(sidecar)
    assert sidecar["image"].endswith(f":{__version__}")
    assert pod["shareProcessNamespace"] is True
    assert {mount["name"] for mount in sidecar["volumeMounts"]} <= {one["name"] for one in pod["volumes"]}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_engine_keeps_all_it_had(example: str) -> None:
    """A patch that replaced a list would lose a volume or a container, and the pod would not start."""
    folder = KUSTOMIZE / "examples" / example
    file = folder / "engine.yaml" if (folder / "engine.yaml").exists() else folder / "stack" / "stack.yaml"
    after = {one["metadata"]["name"]: template(one) for one in documents(kustomized(folder))}
    for one in documents(file.read_text()):
        was, now = template(one), after[one["metadata"]["name"]]
        assert was["metadata"]["labels"].items() <= now["metadata"]["labels"].items()
        assert now["spec"]["containers"] == was["spec"]["containers"]
        for key in ("volumes", "initContainers"):
            kept = [entry for entry in now["spec"].get(key, ()) if "kvcache-exporter" not in entry["name"]]
            assert kept == was["spec"].get(key, [])


@pytest.mark.parametrize("example", EXAMPLES)
def test_sidecar_watches_the_port_that_the_engine_serves(example: str) -> None:
    """And its settings are ones that the exporter knows."""
    pod = template(patched(example))["spec"]
    (sidecar,) = sidecars(patched(example))
    given = {
        one["name"].removeprefix("KVCACHE_EXPORTER_").lower(): one["value"]
        for one in sidecar["env"]
        if one["name"].startswith("KVCACHE_EXPORTER_")
    }
    (target,) = ServeSettings(**given).target
    ports = [port["containerPort"] for one in pod["containers"] for port in one["ports"]]
    assert target.url in {f"http://127.0.0.1:{port}" for port in ports}
    # What the exporter reads lies where the engine has it, and cannot be written.
    engine = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for mount in sidecar["volumeMounts"]:
        if mount["name"] != "kvcache-exporter-cache":
            assert mount["mountPath"] == engine[mount["name"]]
            assert mount["readOnly"] is True


def test_monitor_selects_every_example() -> None:
    """One PodMonitor for all namespaces: its label and port are those that the component sets."""
    objects = documents(kustomized(KUSTOMIZE / "monitoring"))
    check(objects)
    monitor = by_kind(objects, "PodMonitor")["spec"]
    assert monitor["namespaceSelector"] == {"any": True}
    for example in EXAMPLES:
        pod = template(patched(example))
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (sidecar,) = sidecars(patched(example))
        assert monitor["podMetricsEndpoints"][0]["port"] in [port["name"] for port in sidecar["ports"]]


def test_router_is_left_alone() -> None:
    """It has no cache, and its page is no engine's."""
    objects = documents(kustomized(KUSTOMIZE / "examples" / "vllm-production-stack"))
    router = next(one for one in objects if one["metadata"]["name"].endswith("router"))
    assert not sidecars(router)
    assert "kvcache-exporter" not in router["spec"]["template"]["metadata"]["labels"]


def test_both_components_add_the_same_container() -> None:
    """kubectl merges the one and cannot merge the other, so it is written twice."""
    merged = yaml.safe_load((KUSTOMIZE / "sidecar" / "sidecar.yaml").read_text())["spec"]["template"]["spec"]
    added = {
        one["path"].rpartition("/spec/")[2]: one["value"]
        for one in yaml.safe_load((KUSTOMIZE / "leaderworkerset" / "patch.yaml").read_text())
        if one["op"] == "add"
    }
    assert added["initContainers"] == merged["initContainers"]
    assert [added["volumes/-"]] == merged["volumes"]


def test_leaderworkerset_with_init_containers_is_refused(tmp_path: Path) -> None:
    """The patch would throw them away."""
    import subprocess

    from .objects import program

    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    engine = tmp_path / "kustomize" / "examples" / "leaderworkerset" / "engine.yaml"
    own = yaml.safe_load(engine.read_text())
    template(own)["spec"]["initContainers"] = [{"name": "download", "image": "busybox"}]
    engine.write_text(yaml.safe_dump(own))
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(engine.parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "test failed" in done.stderr
