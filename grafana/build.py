"""``python -m grafana.build``: write the boards' files anew; ``--check``: only say whether it is current."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import capacity, fleet, health, latency, pressure

HERE: Final = Path(__file__).parent
HEADER: Final = "# Made by `python -m grafana.build`. Do not edit.\n"
FOLDER: Final = HERE / "dashboards"
BOARDS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    module.UID: module.made for module in (capacity, pressure, latency, fleet, health)
}


def text_of(uid: str) -> str:
    """A board's JSON, keys sorted, so that a change shows as a change."""
    return json.dumps(BOARDS[uid](), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _yaml(*documents: object) -> str:
    return HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=100)


def _config_maps() -> dict[str, Any]:
    """For a sidecar that collects ConfigMaps; kustomize reads the JSON where it lies."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "configMapGenerator": [{"name": uid, "files": [f"{uid}.json"]} for uid in BOARDS],
        "generatorOptions": {"disableNameSuffixHash": True, "labels": {"grafana_dashboard": "1"}},
    }


def _operator_objects() -> list[dict[str, Any]]:
    """For grafana-operator: each board out of its ConfigMap."""
    return [
        {
            "apiVersion": "grafana.integreatly.org/v1beta1",
            "kind": "GrafanaDashboard",
            "metadata": {"name": uid, "labels": {"app.kubernetes.io/name": "kvcache-exporter"}},
            "spec": {
                "instanceSelector": {"matchLabels": {"dashboards": "grafana"}},
                "folder": "KV cache",
                "configMapRef": {"name": uid, "key": f"{uid}.json"},
            },
        }
        for uid in BOARDS
    ]


def files() -> dict[Path, str]:
    """All that is generated: path -> text."""
    operator = HERE / "provisioning" / "operator"
    return {
        **{FOLDER / f"{uid}.json": text_of(uid) for uid in BOARDS},
        FOLDER / "kustomization.yaml": _yaml(_config_maps()),
        operator / "dashboards.yaml": _yaml(*_operator_objects()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where ``--check`` found a file out of date."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    made = files()
    old = [path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text]
    old += [path for path in FOLDER.glob("*.json") if path not in made]
    for path in old:
        if asked.check:
            print(f"out of date: {path.relative_to(HERE)}", file=sys.stderr)
        elif path in made:
            path.write_text(made[path], encoding="utf-8")
            print(f"written: {path.relative_to(HERE)}")
        else:
            path.unlink()
    return 1 if asked.check and old else 0


if __name__ == "__main__":
    raise SystemExit(main())
