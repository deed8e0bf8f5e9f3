"""/probe: one target, fetched now, where the settings allow it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter import lookup
from exporter.probing import prober

from . import hostile as h
from .engines import LLAMA, LLAMA_BYTES_PER_TOKEN, QWEN3, page, renamed, vllm
from .page import Page
from .running import InProcess
from .waiting import wait_for

EVERY_PORT = ["127.0.0.0/8:*"]
OUTCOMES = "kvcache_exporter_probe_requests_total"


@pytest.fixture
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"engine": vllm(), "hangs": h.nothing}) as running:
        yield running


@pytest.fixture
def exporter(server: h.HostileServer) -> Iterator[InProcess]:
    modules = {"fp8": {"kv_cache_dtype": "fp8", "block_size": 7}}
    with InProcess({}, probe_allow=EVERY_PORT, modules=modules) as running:
        yield running


def probe(exporter: InProcess, target: str, timeout: str = "", **more: str) -> httpx.Response:
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": timeout} if timeout else {}
    return httpx.get(
        f"{exporter.url}/probe",
        params={"target": target, **more},
        headers=headers,
        timeout=20,
        trust_env=False,
    )


def test_figures_of_one_target(exporter: InProcess, server: h.HostileServer) -> None:
    """The first probe learns everything there is to know, the second costs one fetch."""
    first = Page.parse(probe(exporter, server.url("engine")).raise_for_status().text)
    assert first.values("kvcache_engine_up") == [1.0]
    assert first.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]
    assert first.values("kvcache_running_sequences") == [9.0]  # as on the recorded page
    assert first.all("kvcache_exporter_fetch_duration_seconds")
    # What only many polls make is left out: half of it would be worse than none.
    assert not [s for s in first.samples if s.name.startswith(("kvcache_sampled", "kvcache_itl_window"))]
    asked = server.asked.copy()
    second = Page.parse(probe(exporter, server.url("engine") + "/metrics").raise_for_status().text)
    assert second.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]
    assert server.asked - asked == {"engine/metrics": 1}
    assert exporter.scrape().values(OUTCOMES, outcome="read") == [2.0]
    # Nothing of it turns up among the targets that are watched.
    assert exporter.scrape().all("kvcache_engine_up") == []


def test_gone_engine_has_no_figures_at_once(exporter: InProcess, server: h.HostileServer) -> None:
    """A probe says what is now: nothing of the probe before, and the reason."""
    probe(exporter, server.url("engine")).raise_for_status()
    server.engines["engine"] = h.hang_up
    gone = Page.parse(probe(exporter, server.url("engine")).raise_for_status().text)
    assert gone.values("kvcache_engine_up") == [0.0]
    assert gone.all("kvcache_running_sequences") == []
    assert gone.values("kvcache_exporter_errors_total", reason="truncated") == [1.0]
    # Back as another model: what was learned about the first must not pass for the second.
    server.engines["engine"] = vllm(renamed(page(folder=QWEN3), "other"), QWEN3)
    back = Page.parse(probe(exporter, server.url("engine")).raise_for_status().text)
    # K and V x 2 KV heads x 64 x 4 layers x 2 bytes (bf16), from QWEN3's config.json.
    assert back.values("kvcache_bytes_per_token", model_name="other") == [2048.0]


@pytest.mark.parametrize(
    ("query", "status", "outcome"),
    [
        ("", 400, "bad_target"),
        ("target=", 400, "bad_target"),
        ("target=ftp://127.0.0.1:1", 400, "bad_target"),
        ("target=file:///etc/passwd", 400, "bad_target"),
        ("target=http://user:hunter2@127.0.0.1:1", 400, "bad_target"),
        ("target=http://127.0.0.1:1&module=nobody", 400, "unknown_module"),
        ("target=http://10.0.0.1:1", 403, "forbidden"),
        ("target=http://169.254.169.254/latest", 403, "forbidden"),
        ("target=http://[::1]:1", 403, "forbidden"),
        ("target=http://0.0.0.0:1", 403, "forbidden"),
    ],
)
def test_refusals(exporter: InProcess, query: str, status: int, outcome: str) -> None:
    """A status for each kind, counted, with a line that repeats nothing of the target."""
    answer = exporter.get(f"/probe?{query}")
    assert answer.status_code == status
    assert len(answer.text.splitlines()) == 1
    assert "hunter2" not in answer.text
    counted = {s.labels["outcome"] for s in exporter.scrape().all(OUTCOMES) if s.value}
    assert counted == {outcome}


def test_two_targets_at_once_are_refused(exporter: InProcess, server: h.HostileServer) -> None:
    """Which of the two was checked and which fetched must not be a question."""
    url = server.url("engine")
    assert exporter.get(f"/probe?target={url}&target={url}").status_code == 400
    assert server.asked == {}


def test_everything_is_forbidden_by_default(server: h.HostileServer) -> None:
    """An exporter that fetches what it is told is an open door."""
    with InProcess({}) as exporter:
        assert probe(exporter, server.url("engine")).status_code == 403
        assert server.asked == {}


def test_name_is_resolved_once_and_connected_to_as_checked(
    server: h.HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name whose owner lets it point elsewhere between check and connection (DNS rebinding): the
    connection goes to the address that was checked, under the name that was asked for."""
    answers: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str | bytes | None, *args: object, **more: object) -> object:
        if host in ("engine.test", b"engine.test"):
            answers.append("127.0.0.1" if not answers else "127.0.0.9")
            return real(answers[-1], *args, **more)  # type: ignore[arg-type]
        return real(host, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with InProcess({}, probe_allow=["127.0.0.1/32:*"]) as exporter:
        url = f"http://engine.test:{server.port}/engine"
        assert Page.parse(probe(exporter, url).text).values("kvcache_engine_up") == [1.0]
        assert answers == ["127.0.0.1"]
        assert all(f"host: engine.test:{server.port}".encode() in head.lower() for head in server.heads)
        # The next time it points at an address that is not allowed, and nothing is fetched.
        before = server.asked.copy()
        assert probe(exporter, url).status_code == 403
        assert server.asked == before


def test_no_proxy_counts_by_name(server: h.HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that a name is pinned to stands in no NO_PROXY; a token sent there would be the proxy's."""
    real = socket.getaddrinfo

    def resolve(host: str | bytes | None, *args: object, **more: object) -> object:
        return real("127.0.0.1" if host in ("engine.test", b"engine.test") else host, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with h.reserve_port() as refused, InProcess({}, probe_allow=EVERY_PORT) as exporter:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{refused.getsockname()[1]}")
        url = f"http://engine.test:{server.port}/engine"
        assert Page.parse(probe(exporter, url).text).values("kvcache_engine_up") == [0.0]
        monkeypatch.setenv("NO_PROXY", ".test")
        assert Page.parse(probe(exporter, url).text).values("kvcache_engine_up") == [1.0]


@pytest.mark.parametrize("limit", ["MAX_FETCHES", "MAX_FETCHES_OF_ONE"])
def test_no_place_is_no_figure(server: h.HostileServer, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Others hang and hold all places: 503 within the scraper's time, and not 0 for a good engine."""
    monkeypatch.setattr(prober, limit, 1)
    go = threading.Event()

    def until_told(_: h.Connection) -> None:
        go.wait(20)

    with (
        h.HostileServer({}) as other,
        InProcess({}, probe_allow=EVERY_PORT, timeout=20.0) as exporter,
    ):
        held = other if limit == "MAX_FETCHES" else server
        held.engines["held"] = until_told
        first = threading.Thread(target=lambda: probe(exporter, held.url("held")))
        first.start()
        wait_for(lambda: held.asked["held/metrics"], "the first one under way")
        told = probe(exporter, server.url("engine"), timeout="0.8", debug="true")
        assert told.status_code == 503
        assert "s for everything" in told.text
        assert exporter.scrape().values(OUTCOMES, outcome="busy") == [1.0]
        go.set()
        first.join(20)
        probe(exporter, server.url("engine")).raise_for_status()


def test_scrapers_timeout_is_honoured(exporter: InProcess, server: h.HostileServer) -> None:
    """An engine that hangs costs the time that the scraper gives less the offset, and is a figure: 0.

    The scraper's half a second less an offset of 0.5 would leave nothing; the least is a tenth.
    """
    answer = probe(exporter, server.url("hangs"), timeout="0.5").raise_for_status()
    seen = Page.parse(answer.text)
    assert seen.values("kvcache_engine_up") == [0.0]
    assert seen.values("kvcache_exporter_errors_total", reason="timeout") == [1.0]
    told = probe(exporter, server.url("hangs"), timeout="0.9", debug="true").text
    assert "0.4 s for everything" in told
    # Nonsense is no timeout: the settings' own holds, 2 s.
    assert "2 s for everything" in probe(exporter, server.url("engine"), timeout="-1", debug="true").text


def test_silent_info_endpoints_fit_into_the_time(
    exporter: InProcess, server: h.HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three endpoints that hang take three times their limit, and the page's figures must come in time."""
    monkeypatch.setattr(lookup, "INFO_TIMEOUT_S", 60.0)
    server.engines["engine"] = vllm(v1_models=h.nothing, version=h.nothing, server_info=h.nothing)
    seen = Page.parse(probe(exporter, server.url("engine"), timeout="1.5").raise_for_status().text)
    assert seen.values("kvcache_engine_up") == [1.0]
    assert seen.values("kvcache_running_sequences") == [9.0]
    assert seen.all("kvcache_bytes_per_token") == []


def test_concurrent_probes_are_one_fetch(exporter: InProcess, server: h.HostileServer) -> None:
    """Two Prometheus servers of a pair ask at the same time; the engine is asked once."""
    go, answer = threading.Event(), vllm()

    def held(c: h.Connection) -> None:
        go.wait(20)
        answer(c)

    server.engines["engine"] = held
    got: list[int] = []

    def ask() -> None:
        got.append(probe(exporter, server.url("engine")).status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.asked["engine/metrics"], "the engine asked")
    # All of them have arrived once the server has a task for each.
    wait_for(lambda: len(exporter.server_tasks()) >= len(threads), "all probes waiting")
    go.set()
    for thread in threads:
        thread.join(20)
    assert got == [200] * len(threads)
    assert server.asked["engine/metrics"] == 1


def test_module_says_what_the_engine_does_not(server: h.HostileServer) -> None:
    """A bare page needs to be told; each module is a view of its own on the same target."""
    server.engines["engine"] = vllm(v1_models=h.body("", "404 Not Found"))
    modules = {"llama": {"model_config": str(LLAMA)}, "none": {}}
    with InProcess({}, probe_allow=EVERY_PORT, modules=modules) as exporter:
        bare = Page.parse(probe(exporter, server.url("engine"), module="none").text)
        assert bare.all("kvcache_bytes_per_token") == []
        told = Page.parse(probe(exporter, server.url("engine"), module="llama").text)
        assert told.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]


def test_token_goes_only_where_a_module_sends_it(server: h.HostileServer, tmp_path: Path) -> None:
    """The token of the engines that are configured is no business of one that somebody asks us to fetch."""
    (tmp_path / "ours").write_text("for-our-engines")
    (tmp_path / "theirs").write_text("for-the-fleet")
    modules = {"fleet": {"bearer_token_file": str(tmp_path / "theirs")}}
    more: dict[str, Any] = {"bearer_token_file": tmp_path / "ours", "modules": modules}
    with InProcess({}, probe_allow=EVERY_PORT, **more) as exporter:
        probe(exporter, server.url("engine")).raise_for_status()
        assert server.heads
        assert not any(b"authorization" in head.lower() for head in server.heads)
        server.heads.clear()
        told = probe(exporter, server.url("engine"), module="fleet", debug="true")
        assert server.heads
        assert all(b"authorization: bearer for-the-fleet\r\n" in head.lower() for head in server.heads)
        assert "for-the-fleet" not in told.text + exporter.get("/-/config").text
        # Another address, sent there by a redirect, would get it as well: none is followed.
        server.engines["away"] = h.body("", "302 Found", Location=server.url("engine") + "/metrics")
        asked = server.asked.copy()
        moved = Page.parse(probe(exporter, server.url("away"), module="fleet").text)
        assert moved.values("kvcache_exporter_errors_total", reason="redirect") == [1.0]
        assert server.asked - asked == {"away/metrics": 1}


def test_debug_shows_every_step(exporter: InProcess, server: h.HostileServer) -> None:
    """Decision, address, fetch, sources and arithmetic, for people."""
    told = probe(exporter, server.url("engine"), debug="true", module="fp8")
    assert told.headers["content-type"].startswith("text/plain")
    for line in (
        "module fp8", "resolved to 127.0.0.1", "allowed by 127.0.0.0/8:*", "fetched in", "Inputs:",
        "Arithmetic:", "bytes_per_token",
    ):  # fmt: skip
        assert line in told.text, line


def test_debug_shows_what_led_to_a_refusal(server: h.HostileServer) -> None:
    """Why is it forbidden?  The address found is what the list is asked for."""
    with InProcess({}, probe_allow=["10.0.0.0/8:*"]) as exporter:
        told = probe(exporter, server.url("engine"), debug="true")
        assert told.status_code == 403
        assert told.text.splitlines()[1] == "resolved to 127.0.0.1"
        assert len(probe(exporter, server.url("engine")).text.splitlines()) == 1


def test_memory_of_targets_is_bounded(
    exporter: InProcess, server: h.HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was learned is kept for so many targets; the one asked for longest ago goes first."""
    monkeypatch.setattr(prober, "MAX_TARGETS", 2)
    for name in ("a", "b", "c", "d"):
        server.engines[name] = vllm()
        probe(exporter, server.url(name)).raise_for_status()
    asked = server.asked.copy()
    probe(exporter, server.url("d")).raise_for_status()
    assert server.asked - asked == {"d/metrics": 1}
    probe(exporter, server.url("a")).raise_for_status()
    assert (server.asked - asked)["a/v1/models"] == 1
