"""The sidecar as a named template, in a chart of somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import helm_python as helm
import pytest

from exporter import __version__

from .chart import rendered
from .objects import assert_hardened, assert_no_shell, by_kind, check

USER: Final = {
    "Chart.yaml": "apiVersion: v2\nname: llm\nversion: 1.0.0\ndependencies:\n"
    f"  - {{name: kvcache-exporter, version: {__version__}}}\n",
    "templates/engine.yaml": """apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
spec:
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec:
      shareProcessNamespace: true
      initContainers:
        {{- include "kvcache-exporter.sidecar" (index .Values "kvcache-exporter") | nindent 8 }}
      containers:
        - {name: vllm, image: "vllm/vllm-openai:v0.11.0"}
      volumes:
        - {name: models, persistentVolumeClaim: {claimName: models}}
        {{- include "kvcache-exporter.volumes" (index .Values "kvcache-exporter") | nindent 8 }}
""",
}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {
            "image": {"repository": "r.example/kv", "digest": "sha256:" + "a" * 64},
            "sidecar": {
                "target": "http://127.0.0.1:30000",
                "models": {"volume": "models", "hfHome": "/models/hf"},
                "args": ["--tensor-parallel-size=8"],
                "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
            },
        },
    ],
    ids=["defaults", "set"],
)
def test_sidecar_template_in_another_chart(archive: Path, tmp_path: Path, own: dict[str, Any]) -> None:
    """A user's chart with this one as its dependency: a native sidecar, hardened, without probes."""
    for path, text in USER.items():
        file = tmp_path / "llm" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "llm" / "charts").mkdir()
    (tmp_path / "llm" / "charts" / archive.name).write_bytes(archive.read_bytes())
    with helm.Chart.load(tmp_path / "llm") as user:
        objects = rendered(user, {"kvcache-exporter": own})
    check(objects)
    pod = by_kind(objects, "Deployment")["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert not [key for key in sidecar if key.endswith("Probe")]
    assert_hardened(sidecar)
    assert_no_shell(sidecar)
    assert {mount["name"] for mount in sidecar["volumeMounts"]} <= {one["name"] for one in pod["volumes"]}
    if not own:
        assert sidecar["image"] == f"registry.example/kvcache-exporter:{__version__}"
        return
    assert sidecar["image"] == "r.example/kv@sha256:" + "a" * 64
    assert sidecar["args"] == [
        "serve",
        "--target=http://127.0.0.1:30000",
        "--log-format=json",
        "--tensor-parallel-size=8",
    ]
    assert {"name": "HF_HOME", "value": "/models/hf"} in sidecar["env"]
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in sidecar["volumeMounts"]


def test_hugging_face_home_without_a_volume_is_refused(archive: Path, tmp_path: Path) -> None:
    """It would be an empty folder of the image."""
    with pytest.raises(helm.HelmRenderError, match="lies in no volume"):
        test_sidecar_template_in_another_chart(archive, tmp_path, {"sidecar": {"models": {"hfHome": "/hf"}}})
