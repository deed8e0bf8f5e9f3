"""The Compose file, as Compose itself reads it."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.rules import HERE as ALERTS
from exporter.settings import ServeSettings
from tests.alerts.promtool import needs

from .objects import DEPLOY, ROOT, program

COMPOSE: Final = DEPLOY / "compose"


def read(**variables: str) -> subprocess.CompletedProcess[str]:
    """`docker compose config`; needs no engine."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        [program("docker-compose"), "-f", str(COMPOSE / "compose.yaml"), "config", "--format", "json"],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def services() -> dict[str, dict[str, Any]]:
    """Name -> service, variables and anchors filled in."""
    done = read(ENGINE_IMAGE="vllm-cpu:test")
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return found


def prometheus_config() -> dict[str, Any]:
    """As it lies in the folder."""
    config: dict[str, Any] = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    return config


def test_all_are_there() -> None:
    """One command starts the whole chain from engine to page."""
    assert set(services()) == {"engine", "exporter", "prometheus", "alertmanager", "pager", "grafana"}
    assert services()["engine"]["image"] == "vllm-cpu:test"


def test_without_an_engine_image_it_says_so() -> None:
    """No default: which image fits depends on the processor."""
    done = read()
    assert done.returncode != 0
    assert "ENGINE_IMAGE" in done.stderr


def test_all_but_the_engine_are_hardened() -> None:
    """Read-only, no capabilities, no new rights; and nothing listens beyond this host."""
    for name, service in services().items():
        if name != "engine":
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}, name


def test_what_is_mounted_exists() -> None:
    """Compose would make an empty, root-owned folder in its place."""
    for service in services().values():
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind":
                source = Path(volume["source"])
                if not (ROOT / "grafana").exists() and source == ROOT / "grafana" / "dashboards":
                    continue
                assert source.exists(), source
                assert volume["read_only"] is True


def test_exporter_watches_the_engine() -> None:
    """By the service's name and port; the command is one that the exporter understands."""
    command = services()["exporter"]["command"]
    assert command[:3] == ["serve", "--target", "http://engine:8000"]
    assert ServeSettings(target=command[2]).target[0].url == "http://engine:8000"
    engine = services()["engine"]["command"]
    assert engine[engine.index("--port") + 1] == "8000"


def test_exporter_reads_the_engines_model_cache() -> None:
    """The same volume under the same path, so that paths that the engine reports hold."""

    def models(service: str) -> tuple[Any, ...]:
        (found,) = (v for v in services()[service]["volumes"] if v["source"] == "models")
        return found["target"], services()[service]["environment"]["HF_HOME"], found.get("read_only", False)

    assert models("engine") == ("/models", "/models", False)
    assert models("exporter") == ("/models", "/models", True)


def test_prometheus_config(tmp_path: Path) -> None:
    """promtool's word, with the rules where they are here instead of where they are mounted."""
    mounted = {v["target"]: v["source"] for v in services()["prometheus"]["volumes"]}
    config = prometheus_config()
    config["rule_files"] = [mounted[path] for path in config["rule_files"]]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [needs("promtool"), "check", "config", str(tmp_path / "prometheus.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--config.file=/etc/prometheus/prometheus.yaml" in services()["prometheus"]["command"]
    assert mounted["/etc/prometheus/prometheus.yaml"] == str(COMPOSE / "prometheus.yaml")


def test_addresses_are_services() -> None:
    """Every HOST:PORT of Prometheus and Grafana is a service and a port that it publishes."""
    config = prometheus_config()
    addresses = [
        target
        for job in (*config["scrape_configs"], *config["alerting"]["alertmanagers"])
        for one in job["static_configs"]
        for target in one["targets"]
    ]
    source = yaml.safe_load((COMPOSE / "grafana" / "datasource.yaml").read_text())["datasources"][0]
    addresses.append(source["url"].removeprefix("http://"))
    for address in addresses:
        name, port = address.split(":")
        assert int(port) in [one["target"] for one in services()[name]["ports"]], address


def test_the_page_arrives_where_the_example_sends_it() -> None:
    """The pager shares Alertmanager's 127.0.0.1, and listens on the port of the example's receivers."""
    pager = services()["pager"]
    assert pager["network_mode"] == "service:alertmanager"
    receivers = yaml.safe_load((ALERTS / "alertmanager.example.yaml").read_text())["receivers"]
    hooks = {hook["url"].rpartition("/")[0] for one in receivers for hook in one["webhook_configs"]}
    assert hooks == {f"http://{pager['command'][0]}"}
    assert pager["image"] == services()["exporter"]["build"]["args"]["PYTHON_IMAGE"]


def test_boards_are_provisioned() -> None:
    """From where they are mounted."""
    mounted = {v["target"]: v["source"] for v in services()["grafana"]["volumes"]}
    (provider,) = yaml.safe_load((COMPOSE / "grafana" / "boards.yaml").read_text())["providers"]
    assert mounted[provider["options"]["path"]] == str(ROOT / "grafana" / "dashboards")
