"""The pages beside the series: encodings, one target's page, discovery, settings."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest
import yaml

from . import hostile as h
from .engines import vllm
from .page import Page
from .running import CLASSIC, InProcess


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"a": vllm(), "b": vllm()}) as running:
        yield running


@pytest.fixture(scope="module")
def exporter(server: h.HostileServer) -> Iterator[InProcess]:
    with InProcess({name: server.url(name) for name in "ab"}) as running:
        running.wait(lambda p: p.values("kvcache_engine_up") == [1.0, 1.0], "the engines read")
        yield running


def test_gzip_when_asked_and_only_then(exporter: InProcess) -> None:
    """The same page, a fraction of its size; byte-exact length, so that a proxy can pass it on."""
    with httpx.Client(trust_env=False) as client:
        url = exporter.url + "/metrics"
        with client.stream("GET", url, headers={**CLASSIC, "Accept-Encoding": "gzip"}) as packed:
            raw = b"".join(packed.iter_raw())
        plain = client.get(url, headers={**CLASSIC, "Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) == len(raw)
    assert "content-encoding" not in plain.headers
    assert len(raw) * 4 < len(plain.content)
    unpacked = Page.parse(gzip.decompress(raw).decode())
    assert unpacked.series("a") == Page.parse(plain.text).series("a")


def test_head_is_get_without_the_body(exporter: InProcess) -> None:
    """Load balancers ask with HEAD."""
    for path in ("/metrics", "/-/healthy", "/sd", "/explain"):
        answer = httpx.head(exporter.url + path, trust_env=False, timeout=20)
        assert (answer.status_code, answer.content) == (200, b""), path
    assert int(httpx.head(exporter.url + "/metrics", trust_env=False).headers["content-length"]) > 1000


def test_one_targets_page(exporter: InProcess) -> None:
    """Its series and nothing of the others or of the process, which /metrics alone says once."""
    one = Page.parse(exporter.get("/metrics?target=a").text)
    assert {s.labels.get("target") for s in one.samples} == {"a"}
    assert one.series("a") == exporter.scrape().series("a")
    missing = exporter.get("/metrics?target=c")
    assert (missing.status_code, missing.text) == (404, "no such target\n")


def test_discovery_leads_to_each_target(exporter: InProcess, server: h.HostileServer) -> None:
    """Done as Prometheus does it: every entry's own labels make a URL, and it serves that target."""
    answer = exporter.get("/sd")
    assert answer.headers["content-type"] == "application/json"
    groups = answer.json()
    assert [g["labels"]["__meta_kvcache_target"] for g in groups] == ["a", "b"]
    instances = set()
    for group in groups:
        labels = group["labels"]
        assert all(isinstance(value, str) for value in labels.values())
        (address,) = group["targets"]
        url = f"{labels['__scheme__']}://{address}{labels['__metrics_path__']}"
        told = httpx.get(url, params={"target": labels["__param_target"]}, trust_env=False)
        page = Page.parse(told.raise_for_status().text)
        assert page.values("kvcache_engine_up", target=labels["__param_target"]) == [1.0]
        instances.add((labels["instance"], labels["__param_target"]))
    assert instances == {(f"127.0.0.1:{server.port}", "a"), (f"127.0.0.1:{server.port}", "b")}


def test_discovery_of_nothing_is_an_empty_list() -> None:
    """Not a 404, on which Prometheus would go on scraping what was there."""
    with InProcess({}) as exporter:
        answer = exporter.get("/sd")
        assert (answer.status_code, answer.json()) == (200, [])
        assert exporter.scrape().values(
            "kvcache_exporter_build_info",
        ) == [1.0]


def test_settings_in_force_are_shown_without_secrets(server: h.HostileServer) -> None:
    """YAML and JSON of the same; nothing that looks like a password comes out."""
    from exporter.settings import ServeSettings, TargetSettings
    from exporter.web.control import _masked, masked

    target = TargetSettings(url=server.url("a"), name="a", tensor_parallel_size=2, bytes_per_token=1.5)
    told = masked(ServeSettings(target=[target], hub=False))
    assert told["target"] == [
        {"url": server.url("a"), "name": "a", "tensor_parallel_size": 2, "bytes_per_token": 1.5}
    ]
    assert "model_config" in told
    assert "check_config" not in told
    secrets = {"password": "x", "bearer_token": "x", "api_key": "x", "client_secret": "x"}
    shown = {"bearer_token_file": "/run/t", "proxy": "http://u:hunter2@p:1", "max_num_batched_tokens": 5}
    out = _masked({**secrets, **shown})
    assert "hunter2" not in json.dumps(out)
    assert {key: out[key] for key in secrets} == dict.fromkeys(secrets, "**********")
    assert (out["bearer_token_file"], out["max_num_batched_tokens"]) == ("/run/t", 5)
    with InProcess({"a": server.url("a")}, timeout=3.0) as exporter:
        page = exporter.get("/-/config")
        assert yaml.safe_load(page.text)["timeout"] == 3.0
        assert exporter.get("/-/config?output=json").json()["settings"] == yaml.safe_load(page.text)
