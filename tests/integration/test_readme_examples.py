"""The README's examples for several engines, tried as they are written; only addresses are others."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.settings import ServeSettings, load
from exporter.web.file_format import read
from tests.rig.server import Server, free_port

from . import hostile as h
from .engines import LLAMA, models, page
from .running import InProcess
from .test_exposition import _query
from .waiting import wait_for

README = (Path(__file__).parents[2] / "README.md").read_text()
PROMETHEUS = shutil.which("prometheus")


def example(first_line: str) -> str:
    """The block that begins with this line."""
    found = re.search(rf"```yaml\n{re.escape(first_line)}\n(.*?)```", README, re.S)
    assert found is not None, first_line
    return found[1]


def test_settings_are_good(tmp_path: Path) -> None:
    """Each file as a whole; the patterns are those that the text explains."""
    for name in ("engines.yaml", "fleet.yaml"):
        (tmp_path / name).write_text(example(f"# kvcache-exporter serve --config-file {name}"))
        loaded = load(ServeSettings, ["--config-file", str(tmp_path / name)])
        assert isinstance(loaded, ServeSettings)
    assert len(loaded.probe_allow) == 3
    assert loaded.modules["fleet"].bearer_token_file is not None


def test_web_configuration_is_good(tmp_path: Path) -> None:
    """With the lines that are comments there, too."""
    text = example("# kvcache-exporter serve --web.config.file=web.yml")
    for said in (text, re.sub(r"# (client_)", r"\1", text)):
        (tmp_path / "web.yml").write_text(said)
        assert read(tmp_path / "web.yml").tls_server_config is not None
        assert read(tmp_path / "web.yml").basic_auth_users


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed")
def test_a_real_prometheus_finds_both_kinds(tmp_path: Path) -> None:
    """Its own configuration: a target through /sd and one through /probe, each up under its address."""
    # Served at the root, as __address__ has no path.
    engine = {
        "metrics": h.body(page()),
        "v1": models(str(LLAMA)),
        "version": h.as_json({"version": "0.32.0"}),
        "server_info?config_format=json": h.body("", "404 Not Found"),
    }
    with h.HostileServer(engine) as server:
        address = f"127.0.0.1:{server.port}"
        more: dict[str, Any] = {"probe_allow": [address], "modules": {"fleet": {}}}
        with InProcess({"chat-0": f"http://{address}"}, **more) as exporter:
            text = example("# prometheus.yml").replace("127.0.0.1:9844", exporter.url.removeprefix("http://"))
            config = yaml.safe_load(text.replace("10.0.0.5:8000", address).replace(', "10.0.0.6:8000"', ""))
            config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
            (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
            port = free_port()
            command = [
                str(PROMETHEUS),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            with Server(command, os.environ, tmp_path / "log", port) as prometheus:
                wait_for(lambda: prometheus.answers("/-/ready"), "Prometheus ready")

                def read_by(job: str) -> bool:
                    query = f'kvcache_engine_up{{job="{job}", instance="{address}"}}'
                    return [value for _, value in _query(prometheus.url, query)] == [1.0]

                for job in ("kvcache", "kvcache-probe"):
                    wait_for(lambda job=job: read_by(job), f"the engine in job {job}")  # type: ignore[misc]
                    assert [v for _, v in _query(prometheus.url, f'up{{job="{job}"}}')] == [1.0]
                # Joined with nothing but what the engine's own series carry.
                used = _query(prometheus.url, 'kvcache_used_bytes{job="kvcache-probe"}')
                # 299 blocks of 32 tokens of 1024 bytes.
                assert [value for _, value in used] == [299 * 32 * 1024.0]
