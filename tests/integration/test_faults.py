"""What goes wrong around the process, each against a real socket.

| fault | test |
|---|---|
| engine killed, comes back with another model | `test_restart.py` |
| engine killed, comes back with another TP | `test_another_tensor_parallel_size` |
| hangs in the middle of a body | `test_hang_in_the_middle_of_a_body` |
| drips bytes for ever | `test_bad_answers.py` (`dripping`), `test_bad_info.py` |
| redirects elsewhere | `test_bad_answers.py::test_redirect_is_not_followed` |
| changes port | `test_another_port` |
| DNS failure | `test_name_that_nobody_knows`, `tests/unit/test_background.py` (resolver hangs) |
| wall clock jumps | `test_wall_clock_jumps` |
| certificate rotated | `test_web_config.py::test_certificate_is_exchanged_without_a_restart` |
| settings file broken, then mended | `test_reload.py::test_broken_file_then_mended` |
| disk full for the log | `test_full_disk_for_the_log` |
| SIGTERM during a poll | `test_life.py::test_stops_at_once` |
| 500 concurrent scrapes | `test_500_scrapes_at_once` |
| scraper that never reads | `test_scrapers_that_never_read`, `test_connections.py` |
| a good engine among hostile ones | `test_bad_answers.py::test_healthy_engine_beside_them_keeps_everything` |
| endless, huge and compressed pages | `test_memory.py` |
"""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from . import hostile as h
from .engines import LLAMA, LLAMA_BYTES_PER_TOKEN, models, page, vllm
from .page import ERRORS
from .running import InProcess, Program
from .test_life import Clock

MIB = 2**20
FETCHES = "kvcache_exporter_fetches_total"


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"engine": vllm()}) as running:
        yield running


# -- the engine ------------------------------------------------------------------------


def _of_ranks(tensor_parallel_size: int) -> h.Answer:
    """The recorded engine as it would be with so many GPUs; its budget, which would tell, left out."""
    text = re.sub(r'kv_cache_memory_bytes="\d+"', 'kv_cache_memory_bytes="None"', page())
    said = json.loads((LLAMA / "endpoints/server_info.json").read_text())
    said["vllm_config"]["parallel_config"]["tensor_parallel_size"] = tensor_parallel_size
    by_path = {
        "/metrics": h.body(text),
        "/v1/models": models(str(LLAMA)),
        "/version": h.as_json({"version": "0.32.0"}),
        "/server_info": h.as_json(said),
    }
    return lambda c: by_path.get(c.path.partition("?")[0], h.body("", "404 Not Found"))(c)


def test_another_tensor_parallel_size(server: h.HostileServer) -> None:
    """Page and names are the same; only the failed poll tells that it is another process.

    A token takes 1024 bytes in all: on one GPU, or 512 on each of two (2 KV heads, one each).
    """
    server.engines["engine"] = _of_ranks(1)
    with InProcess({"engine": server.url("engine")}) as exporter:
        device = "kvcache_device_bytes_per_token"
        exporter.wait(lambda p: p.values(device) == [LLAMA_BYTES_PER_TOKEN], "one GPU")
        server.engines["engine"] = h.reset
        exporter.wait(lambda p: p.reasons(ERRORS, "engine"), "the engine gone")
        server.engines["engine"] = _of_ranks(2)
        seen = exporter.wait(lambda p: p.values(device) == [LLAMA_BYTES_PER_TOKEN / 2], "two GPUs")
        assert seen.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]


def test_hang_in_the_middle_of_a_body(server: h.HostileServer) -> None:
    """Half a page has half of the series; none of them may be taken for the whole."""
    whole = page().encode()

    def half(c: h.Connection) -> None:
        c.send(h.head(Content_Length=str(len(whole))) + whole[: len(whole) // 2])
        c.closing.wait()

    server.engines["half"] = vllm(metrics=half)
    with InProcess({"half": server.url("half")}, timeout=0.5) as exporter:
        seen = exporter.wait(lambda p: p.reasons(ERRORS, "half"), "the failed poll")
        assert set(seen.reasons(ERRORS, "half")) == {"timeout"}
        assert seen.values("kvcache_engine_up") == [0.0]
        assert seen.all("kvcache_running_sequences") == []


def test_another_port(server: h.HostileServer, tmp_path: Path) -> None:
    """The engine comes back elsewhere: down where it was, and up once the settings say where it is."""
    gone = h.reserve_port()
    file = tmp_path / "settings.yaml"
    file.write_text(f"target: [{{name: e, url: 'http://127.0.0.1:{gone.getsockname()[1]}'}}]\nhub: false\n")
    server.engines["engine"] = vllm()
    with gone, Program(tmp_path / "log", "--config-file", str(file)) as program:
        program.wait(lambda p: "connection_refused" in p.reasons(ERRORS, "e"), "the empty port")
        file.write_text(f"target: [{{name: e, url: '{server.url('engine')}'}}]\nhub: false\n")
        httpx.post(f"{program.url}/-/reload", trust_env=False).raise_for_status()
        program.wait(
            lambda p: p.values("kvcache_engine_up", target="e") == [1.0], "the engine at its new port"
        )


def test_name_that_nobody_knows(server: h.HostileServer) -> None:
    """Its own reason, and the engine beside it is read."""
    server.engines["engine"] = vllm()
    # .invalid is reserved for names that never resolve (RFC 6761).
    targets = {"nowhere": "http://engine.invalid:8000", "engine": server.url("engine")}
    with InProcess(targets, timeout=10.0) as exporter:
        seen = exporter.wait(lambda p: p.reasons(ERRORS, "nowhere"), "the failed poll")
        assert set(seen.reasons(ERRORS, "nowhere")) == {"dns"}
        exporter.wait(lambda p: p.values("kvcache_engine_up", target="engine") == [1.0], "the engine read")


# -- the clock --------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [-86_400.0 * 365, 86_400.0 * 365])
def test_wall_clock_jumps(server: h.HostileServer, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """NTP sets it, someone mistypes it: what is fresh stays fresh, and what is stale does not come back."""
    server.engines["engine"] = vllm()
    wall = [0.0]
    real = time.time
    clock = Clock()
    with InProcess({"engine": server.url("engine")}, clock) as exporter:
        exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
        monkeypatch.setattr(time, "time", lambda: real() + wall[0])
        wall[0] = step_s
        fresh = exporter.wait_for_polls("engine", 2)
        assert fresh.values("kvcache_engine_up") == [1.0]
        assert 0 <= fresh.value("kvcache_exporter_readout_age_seconds") < 30
        server.engines["engine"] = h.hang_up
        exporter.wait(lambda p: p.reasons(ERRORS, "engine"), "the engine gone")
        clock.ahead += 31
        assert exporter.scrape().values("kvcache_engine_up") == [0.0]
        wall[0] = -step_s
        assert exporter.scrape().values("kvcache_engine_up") == [0.0]


# -- the log -----------------------------------------------------------------------------


def test_full_disk_for_the_log(server: h.HostileServer, tmp_path: Path) -> None:
    """Every write to /dev/full fails as on a full disk: lines are lost, figures are not, and it ends well."""
    server.engines["engine"] = vllm()
    full = Path("/dev/full")
    with Program(full, "--target", server.url("engine"), "--hub", "false") as program:
        program.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
        server.engines["engine"] = h.hang_up  # something to say
        name = f"127.0.0.1:{server.port}"
        program.wait(lambda p: p.reasons(ERRORS, name), "the engine gone")
        server.engines["engine"] = vllm()
        program.wait_for_polls(name, 3)
        assert program.stop(signal.SIGTERM, 10) == 0


# -- the scrapers ---------------------------------------------------------------------------


@pytest.fixture
def fleet(server: h.HostileServer, tmp_path: Path) -> Iterator[Program]:
    """Twenty engines, so that a page is some 200 kB."""
    names = [f"e{n}" for n in range(20)]
    server.engines |= {name: vllm() for name in names}
    flags = Program.targets({name: server.url(name) for name in names}, tmp_path)
    with Program(tmp_path / "log", *flags, "--hub", "false", "--poll-interval", "1") as program:
        program.wait(lambda p: p.values("kvcache_engine_up") == [1.0] * 20, "the engines read")
        yield program


def _connected(program: Program, request: bytes, receive_bytes: int | None = None) -> socket.socket:
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(60)
    host, port = program.listen.split(":")
    sock.connect((host, int(port)))
    sock.sendall(request)
    return sock


def test_500_scrapes_at_once(fleet: Program) -> None:
    """Every one of them gets a whole page; polls go on, and memory is that of a few pages, not of 500."""
    before = fleet.wait_for_polls("e0", 2)
    resident = fleet.resident_bytes()
    fleet.forget_peak()
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    socks = [_connected(fleet, request) for _ in range(500)]
    for sock in socks:
        with sock, sock.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        told = re.search(rb"content-length: (\d+)", head)
        assert told is not None
        assert len(body) == int(told[1]) > 100_000
    after = fleet.wait_for_polls("e0", 1)
    # 500 pages of 200 kB are 100 MB; the buffers of 500 connections, 64 kB each, are 32 MB.
    assert fleet.peak_bytes() - resident < 80 * MIB
    assert after.series("e0") == before.series("e0")
    assert all(not after.reasons(ERRORS, f"e{n}") for n in range(20))


def test_requests_that_are_none_write_no_log(fleet: Program) -> None:
    """Whoever can reach the port must not be able to fill the disk."""
    before = fleet.output()
    for said in (
        b"\x16\x03\x01nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /-/reload HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        with _connected(fleet, said) as sock:
            assert sock.recv(64).startswith(b"HTTP/1.1 4")
    assert fleet.get("/probe?target=http://10.0.0.1:1").status_code == 403
    assert fleet.output() == before


def test_scrapers_that_never_read(fleet: Program) -> None:
    """Each asks for two hundred pages (40 MB) at once and takes none: they hold their buffers, no more."""
    fleet.wait_for_polls("e0", 2)
    resident = fleet.resident_bytes()
    fleet.forget_peak()
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200
    socks = [_connected(fleet, request, receive_bytes=4096) for _ in range(50)]
    try:
        seen = fleet.wait_for_polls("e0", 3)
        assert all(not seen.reasons(ERRORS, f"e{n}") for n in range(20))
        assert fleet.peak_bytes() - resident < 60 * MIB
    finally:
        for sock in socks:
            sock.close()
