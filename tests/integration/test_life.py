"""Start, stop, and an engine that comes and goes."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, page, vllm
from .page import ERRORS
from .running import InProcess, Program, lines_of, run_program
from .waiting import wait_for

STOPS_WITHIN_S = 2.0
# Loading and tearing down an interpreter on a busy machine is not the exporter's time.
SLACK_S = 3.0


class Clock:
    """The monotonic clock, set forward by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


# -- an engine that comes and goes ----------------------------------------------------


def test_starts_before_the_engine_does(tmp_path: Path) -> None:
    """A sidecar is up first: engine_up 0, and 1 without a restart once the engine answers."""
    waiting_for_engine = h.reserve_port()
    url = f"http://127.0.0.1:{waiting_for_engine.getsockname()[1]}/engine"
    with Program(tmp_path / "log", "--target", url, "--hub", "false") as program:
        seen = program.wait(
            lambda p: p.values(ERRORS, reason="connection_refused") != [0.0], "a first failure"
        )
        assert seen.values("kvcache_engine_up") == [0.0]
        # Ready to serve: a pod whose readiness waited for the engine would never become ready.
        assert program.get("/-/ready").status_code == 200
        with h.HostileServer({"engine": vllm()}, waiting_for_engine):
            seen = program.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
            assert seen.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]


def test_figures_stay_until_they_are_stale_and_come_back() -> None:
    """One missed poll must tear no hole into graphs; figures of half a minute ago are not current.

    With polls every 0.25 s the limit is the longer of 30 s and three polls: 30 s.
    """
    clock = Clock()
    with (
        h.HostileServer({"engine": vllm()}) as server,
        InProcess({"engine": server.url("engine")}, clock) as exporter,
    ):
        exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
        server.engines["engine"] = h.hang_up
        exporter.wait(lambda p: p.value(ERRORS, reason="truncated") > 0, "a failed poll")
        clock.ahead += 25
        seen = exporter.scrape()
        assert seen.values("kvcache_engine_up") == [1.0]
        assert seen.values("kvcache_running_sequences") == [9.0]
        assert 25 <= seen.value("kvcache_exporter_readout_age_seconds") < 30
        clock.ahead += 6
        gone = exporter.scrape()
        assert gone.values("kvcache_engine_up") == [0.0]
        for metric in ("running_sequences", "usage_ratio", "bytes_per_token", "preemptions_total"):
            assert gone.all(f"kvcache_{metric}") == []
        assert gone.why_missing("engine") == {"kvcache_engine_up": "truncated"}
        server.engines["engine"] = vllm()
        back = exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine back")
        assert back.series("engine") == seen.series("engine")


def test_slow_polls_stretch_the_limit() -> None:
    """Polled every 15 s, an engine is stale after three missed polls, 45 s, not after 30."""
    clock = Clock()
    with (
        h.HostileServer({"engine": vllm()}) as server,
        InProcess({"engine": server.url("engine")}, clock, poll_interval=15.0) as exporter,
    ):
        exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
        server.engines["engine"] = h.hang_up
        clock.ahead += 40
        assert exporter.scrape().values("kvcache_engine_up") == [1.0]
        clock.ahead += 6
        assert exporter.scrape().values("kvcache_engine_up") == [0.0]


# -- signals ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    engines = {"healthy": vllm(), "hangs": h.nothing, "half": vllm(v1_models=h.nothing)}
    with h.HostileServer(engines) as running:
        yield running


@pytest.mark.parametrize(
    ("engine", "sign"),
    [
        ("healthy", signal.SIGTERM),
        ("healthy", signal.SIGINT),
        ("hangs", signal.SIGTERM),
        ("half", signal.SIGTERM),
    ],
)
def test_stops_at_once(server: h.HostileServer, tmp_path: Path, engine: str, sign: signal.Signals) -> None:
    """Status 0 within two seconds, whatever the engine does, with a scraper's connection still open."""
    flags = ("--target", server.url(engine), "--hub", "false", "--log-format", "json")
    with Program(tmp_path / "log", *flags) as program:
        wait_for(lambda: server.asked[f"{engine}/metrics"], "the engine asked")
        host, port = program.listen.split(":")
        with socket.create_connection((host, int(port))) as scraper:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: exporter\r\n\r\n")
            assert scraper.recv(15) == b"HTTP/1.1 200 OK"  # kept alive, and not read to its end
            begun = time.monotonic()
            status = program.stop(sign, STOPS_WITHIN_S + SLACK_S)
            took = time.monotonic() - begun
        assert status == 0, program.output()
        assert took < STOPS_WITHIN_S + SLACK_S
        assert "Traceback" not in program.output()
        assert '"event": "stopped"' in lines_of(program.output())[-1]


def test_stops_at_once_while_the_hub_is_silent(tmp_path: Path) -> None:
    """The hub library retries for about half a minute; that must not hold up the end of a pod."""
    engines = {"engine": vllm(v1_models=h.as_json({"data": [{"id": "m", "root": "some/model"}]}))}
    with h.HostileServer(engines) as server:
        server.engines["some"] = server.engines["api"] = h.nothing
        hub = {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.port}",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path),
        }
        with Program(tmp_path / "log", "--target", server.url("engine"), env=hub) as program:
            asked = lambda: [path for path in server.asked if path.startswith(("some/", "api/"))]  # noqa: E731
            wait_for(asked, "the hub asked")
            assert program.stop(signal.SIGTERM, STOPS_WITHIN_S + SLACK_S) == 0, program.output()
            assert "Traceback" not in program.output()


def test_second_signal_is_no_crash(server: h.HostileServer, tmp_path: Path) -> None:
    """An impatient Ctrl-C twice ends it all the same, without a traceback."""
    with Program(tmp_path / "log", "--target", server.url("hangs"), "--hub", "false") as program:
        assert program.process is not None
        program.process.send_signal(signal.SIGINT)
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(STOPS_WITHIN_S + SLACK_S) in (0, -signal.SIGINT)
        assert "Traceback" not in program.output()


# -- a port that is taken ----------------------------------------------------------------


def test_port_taken_is_one_clear_line(server: h.HostileServer) -> None:
    """Status 1, and a line that names the address and the cause."""
    address = f"127.0.0.1:{server.port}"
    ended = run_program(
        "serve", "--target", server.url("healthy"), "--listen-address", address, "--hub", "false",
        "--log-format", "json",
    )  # fmt: skip
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    told = [line for line in lines_of(ended.stderr) if '"level": "info"' not in line]
    assert len(told) == 1, ended.stderr
    assert address in told[0]
    assert "in use" in told[0]


# -- log lines ---------------------------------------------------------------------------


def _lines_about(program: Program, event: str) -> list[str]:
    return [line for line in lines_of(program.output()) if f'"event": "{event}"' in line]


def test_fifty_polls_of_a_healthy_engine_are_silent(tmp_path: Path) -> None:
    """A log that grows with every poll would drown the line that matters."""
    # Small, so that fifty polls take little.
    text = 'vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.5\n'
    with h.HostileServer({"engine": vllm(text)}) as server:
        flags = ("--target", server.url("engine"), "--hub", "false", "--log-format", "json")
        with Program(tmp_path / "log", *flags, "--poll-interval", "0.02", unstretched=True) as program:
            program.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
            name = f"127.0.0.1:{server.port}"
            program.wait_for_polls(name, 1)
            before = program.output()
            program.wait_for_polls(name, 50)
            assert program.output() == before
            assert len(_lines_about(program, "engine read")) == 1


def test_each_change_is_one_line(tmp_path: Path) -> None:
    """Down, up, down: a line for each, however many polls each of them lasts."""
    with h.HostileServer({"engine": h.hang_up}) as server:
        flags = ("--target", server.url("engine"), "--hub", "false", "--log-format", "json")
        with Program(tmp_path / "log", *flags) as program:
            name = f"127.0.0.1:{server.port}"
            program.wait_for_polls(name, 3)
            assert len(_lines_about(program, "engine not read")) == 1
            server.engines["engine"] = vllm(page())
            wait_for(lambda: _lines_about(program, "engine read"), "the engine read")
            program.wait_for_polls(name, 3)
            server.engines["engine"] = h.hang_up
            wait_for(lambda: len(_lines_about(program, "engine not read")) > 1, "the engine gone")
            program.wait_for_polls(name, 3)
            lines = lines_of(program.output())
            events = [line.split('"event": "')[1].split('"')[0] for line in lines]
            # No line twice for one state; the config's own line comes once.
            assert events == [
                "listening",
                "engine not read",
                "config.json read",
                "engine read",
                "engine not read",
            ]
            assert all(line.startswith("{") and line.endswith("}") for line in lines)


def test_no_thread_is_left_behind() -> None:
    """The exporter in this process ends with all its threads but daemons of look-ups that hang."""
    before = {thread.name for thread in threading.enumerate()}
    with (
        h.HostileServer({"engine": vllm()}) as server,
        InProcess({"engine": server.url("engine")}) as exporter,
    ):
        exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read")
    wait_for(lambda: {t.name for t in threading.enumerate() if not t.daemon} <= before, "the threads gone")


def test_nothing_is_promised_where_the_port_is_taken(server: h.HostileServer) -> None:
    """`replay` and `demo` say where to look once they are there, not before."""
    address = f"127.0.0.1:{server.port}"
    recorded = str(files("exporter.demo") / "data" / "vllm.jsonl.gz")
    for command in (["replay", recorded], ["demo"]):
        ended = run_program(*command, "--listen-address", address)
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert address in ended.stderr
