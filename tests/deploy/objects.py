"""Kubernetes objects: reading them, and holding them against the schemas of those who will read them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
# The oldest with native sidecars, and the newest whose schemas are there.
KUBERNETES: Final = ("1.29", "1.37")
# Objects whose schema no package has; tests look at what matters in them.
UNKNOWN: Final = {"LeaderWorkerSet"}


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a YAML stream; a key given twice is an error, as it is to kubectl."""
    return [one for one in yaml.load_all(text, Loader=_Strict) if one]


class _Strict(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where the first one would silently be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"given twice: {twice}, line {node.start_mark.line + 1}"
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


@cache
def custom() -> Mapping[str, type[BaseModel]]:
    """Kind -> the operator's own object.  Read late: these are long modules."""
    from cloudcoil.models.keda.v1alpha1 import ScaledObject
    from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

    return {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule, "ScaledObject": ScaledObject}


def check(objects: Iterable[Mapping[str, Any]]) -> None:
    """Raise for an object that Kubernetes or its operator would refuse, or of which it would drop a field."""
    import kubernetes_validate

    for one in objects:
        kind = one["kind"]
        if kind in custom():
            # Unknown fields are dropped silently, by the API server and by the model; so compare.
            read = custom()[kind].model_validate(one)
            kept = read.model_dump(mode="json", by_alias=True, exclude_unset=True)
            assert kept == one, f"{kind}: dropped or changed"
        elif kind not in UNKNOWN:
            for version in KUBERNETES:
                kubernetes_validate.validate(one, version, strict=True)


def by_kind(objects: Iterable[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one object of that kind."""
    found = [one for one in objects if one["kind"] == kind]
    assert len(found) == 1, (kind, [one["kind"] for one in objects])
    return found[0]


def program(name: str) -> str:
    """A program that came into this environment with a package of the dev group."""
    path = Path(sys.executable).with_name(name)
    assert path.exists(), f"{path}: not in the dev group?"
    return str(path)


@cache
def kustomized(folder: Path) -> str:
    """What ``kubectl kustomize`` makes of a folder."""
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # deprecated fields
    return done.stdout


def assert_hardened(container: Mapping[str, Any]) -> None:
    """What the restricted Pod Security Standard asks of a container, and a read-only root besides."""
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def assert_no_shell(container: Mapping[str, Any]) -> None:
    """The image may lack one."""
    words = [*container.get("command", ()), *container.get("args", ())]
    assert not {"sh", "bash", "/bin/sh", "/bin/bash", "-c"} & set(words)
