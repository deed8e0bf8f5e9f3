"""The files that bring the boards into a Grafana name boards that are there, once each."""

from __future__ import annotations

from typing import Any

import yaml

from grafana.build import BOARDS, FOLDER, HERE


def read(path: str) -> list[Any]:
    return list(yaml.safe_load_all((HERE / path).read_text(encoding="utf-8")))


def test_sidecar_config_maps() -> None:
    """The sidecar looks for this label; a board over a mebibyte would fit into no ConfigMap."""
    (made,) = read("dashboards/kustomization.yaml")
    assert made["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}
    files = [file for one in made["configMapGenerator"] for file in one["files"]]
    assert sorted(files) == sorted(path.name for path in FOLDER.glob("*.json"))
    # kubectl apply keeps a copy in an annotation, of 256 KiB at most.
    assert all((FOLDER / file).stat().st_size < 2**18 * 0.9 for file in files)


def test_operator_objects_take_those_config_maps() -> None:
    """The Operator reads the board from a key that must exist."""
    (maps,) = read("dashboards/kustomization.yaml")
    keys = {(one["name"], file) for one in maps["configMapGenerator"] for file in one["files"]}
    objects = read("provisioning/operator/dashboards.yaml")
    taken = {(o["spec"]["configMapRef"]["name"], o["spec"]["configMapRef"]["key"]) for o in objects}
    assert taken == keys
    assert {one["metadata"]["name"] for one in objects} == set(BOARDS)
    (over,) = read("provisioning/operator/kustomization.yaml")
    below = HERE / "provisioning" / "operator"
    assert all((below / one).exists() for one in over["resources"])
    # kustomize takes a base above the folder for a circle.
    assert not any(below.is_relative_to((below / one).resolve()) for one in over["resources"])


def test_plain_grafana() -> None:
    """The provider's path is what the README tells to mount."""
    (provider,) = read("provisioning/dashboards/kvcache.yaml")
    path = provider["providers"][0]["options"]["path"]
    assert path in (HERE / "README.md").read_text(encoding="utf-8")
    (source,) = read("provisioning/datasources/kvcache.yaml")
    assert source["datasources"][0]["type"] == "prometheus"


def test_readme_shows_every_board() -> None:
    """A board without a picture and a word on what it answers is not found."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    for uid in BOARDS:
        assert f"(pictures/{uid}.png)" in text
        assert 0 < (HERE / "pictures" / f"{uid}.png").stat().st_size < 250_000
