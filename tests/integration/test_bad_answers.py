"""Engines that give no page at all: the right reason, and nobody else suffers.

One exporter watches every bad engine at once, beside a healthy one, as in a
fleet on a bad day.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, page, vllm
from .page import ERRORS
from .running import InProcess

PAGE = page().encode()
TEXT = {"Content_Type": "text/plain; version=1.0.0; charset=utf-8"}
# Cut in the middle of the running count's last digits: a reader would see 1, not 9.0e1.
CUT = page().split("vllm:num_requests_running{", 1)[0] + 'vllm:num_requests_running{engine="0"} 1'
HALF = PAGE[: PAGE.index(b"\n", 20_000) + 1]
TWO_MEMBERS = h.zipped(HALF) + h.zipped(PAGE[len(HALF) :])

# name -> (what /metrics does, the reason counted)
BAD: dict[str, tuple[h.Answer, str]] = {
    "silent": (h.nothing, "timeout"),
    "dripping": (h.drip(h.head(Content_Length=str(len(PAGE))) + PAGE), "timeout"),
    "hangs-up": (h.hang_up, "truncated"),
    "resets": (h.reset, "connection_failed"),
    "not-http": (h.raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "truncated"),
    "endless-head": (h.endless_head, "truncated"),
    "not-found": (h.body(PAGE, "404 Not Found"), "http_404"),
    "unauthorized": (h.body(PAGE, "401 Unauthorized"), "http_401_403"),
    "forbidden": (h.body(PAGE, "403 Forbidden"), "http_401_403"),
    "server-error": (h.body(PAGE, "500 Internal Server Error"), "http_5xx"),
    "starting": (h.body("", "503 Service Unavailable"), "http_5xx"),
    "teapot": (h.body(PAGE, "418 I'm a teapot"), "http_other"),
    "partial": (h.body(PAGE, "206 Partial Content"), "http_other"),
    "html": (h.body("<!DOCTYPE html><html><body>vllm:num_requests_running 1</body></html>"), "not_metrics"),
    "html-later": (h.body("\n\n  <html>\n</html>\n"), "not_metrics"),
    "empty": (h.body(""), "empty"),
    "blank": (h.body(" \n\t\r\n  \n"), "empty"),
    "binary": (h.body(b"\x7fELF\x02\x01\x01\0\0\0" + bytes(range(256)) * 40), "not_metrics"),
    "binary-no-nul": (h.body(bytes(range(1, 256)) * 40), "no_engine_families"),
    "somebody-else": (h.body("# TYPE up gauge\nup 1\nprocess_cpu_seconds_total 3\n"), "no_engine_families"),
    "short-of-length": (h.raw(h.head(Content_Length=str(len(PAGE) + 1), **TEXT) + PAGE), "truncated"),
    "chunk-cut": (h.raw(h.head(Transfer_Encoding="chunked") + b"ffff\r\n" + PAGE[:30000]), "truncated"),
    "no-last-chunk": (h.raw(h.head(Transfer_Encoding="chunked") + b"2\r\nup\r\n"), "truncated"),
    "cut-in-a-value": (h.body(CUT, **TEXT), "truncated"),
    "gzip-cut": (h.body(h.zipped(PAGE)[:-20], Content_Encoding="gzip"), "truncated"),
    "gzip-no-checksum": (h.body(h.zipped(PAGE)[:-8], Content_Encoding="gzip"), "truncated"),
    "gzip-garbage": (h.body(PAGE, Content_Encoding="gzip"), "bad_encoding"),
    # Half a page would pass for a whole one if only the first of two members were read.
    "gzip-of-two": (h.body(TWO_MEMBERS, Content_Encoding="gzip"), "bad_encoding"),
    "brotli": (h.body(PAGE, Content_Encoding="br"), "bad_encoding"),
    "gzip-twice": (h.body(h.zipped(h.zipped(PAGE)), Content_Encoding="gzip, gzip"), "bad_encoding"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({name: vllm(metrics=answer) for name, (answer, _) in BAD.items()}) as running:
        goal = running.url("redirect-goal")
        away = h.body("", "302 Found", Location=f"{goal.replace('127.0.0.1', 'localhost')}/metrics")
        running.engines |= {
            "healthy": vllm(),
            "gzip-fine": vllm(metrics=h.body(h.zipped(PAGE), Content_Encoding="gzip")),
            "redirect": vllm(metrics=away),
            "redirect-goal": vllm(),
        }
        yield running


@pytest.fixture(scope="module")
def refusing() -> Iterator[socket.socket]:
    # Bound but never listening: nobody else can take the port meanwhile.
    with h.reserve_port() as sock:
        yield sock


@pytest.fixture(scope="module")
def mute() -> Iterator[socket.socket]:
    # Listening, but nobody accepts: the connection stands, and no handshake is ever answered.
    with h.reserve_port() as sock:
        sock.listen(256)
        yield sock


@pytest.fixture(scope="module")
def exporter(server: h.HostileServer, refusing: socket.socket, mute: socket.socket) -> Iterator[InProcess]:
    targets = {name: server.url(name) for name in (*BAD, "redirect", "gzip-fine", "healthy")}
    targets["refused"] = f"http://127.0.0.1:{refusing.getsockname()[1]}"
    targets["mute-tls"] = f"https://127.0.0.1:{mute.getsockname()[1]}"
    targets["plain-for-tls"] = server.url("healthy").replace("http:", "https:")
    with InProcess(targets, timeout=4.0) as running:
        running.wait(lambda p: p.value("kvcache_engine_up", target="healthy") == 1, "the healthy engine")
        yield running
        # Ended in the middle of a handshake, the poll would leave its socket to the garbage collector.
        mute.close()
        running.wait(lambda p: "connection_refused" in p.reasons(ERRORS, "mute-tls"), "no more handshakes")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, reason) for name, (_, reason) in BAD.items()),
        ("refused", "connection_refused"),
        ("redirect", "redirect"),
        ("plain-for-tls", "tls"),
        ("mute-tls", "timeout"),
    ],
)
def test_reason_is_exact_and_no_figure_is_made_up(exporter: InProcess, name: str, reason: str) -> None:
    """One reason and no other, engine_up 0, and not one figure of the engine."""
    seen = exporter.wait(lambda p: p.reasons(ERRORS, name), f"a failed poll of {name}")
    assert set(seen.reasons(ERRORS, name)) == {reason}
    assert seen.value("kvcache_engine_up", target=name) == 0
    # Why the engine is down is said in the same words where missing series are listed.
    assert seen.why_missing(name)["kvcache_engine_up"] == reason
    own = ("kvcache_exporter_", "kvcache_engine_up")
    assert [
        s.name for s in seen.samples if s.labels.get("target") == name and not s.name.startswith(own)
    ] == []


def test_gzip_that_was_not_asked_for_is_read_all_the_same(exporter: InProcess) -> None:
    """A proxy may compress whatever the client says; the page is the same."""
    seen = exporter.wait(lambda p: p.value("kvcache_engine_up", target="gzip-fine") == 1, "the gzip page")
    assert seen.reasons(ERRORS, "gzip-fine") == {}
    assert seen.value("kvcache_running_sequences", target="gzip-fine") == 9  # as on the recorded page


def test_identity_is_asked_for(exporter: InProcess, server: h.HostileServer) -> None:
    """Compressing costs the engine's process: every request must ask for none, and for no OpenMetrics."""
    exporter.wait_for_polls("healthy", 1)
    heads = [head.lower() for head in server.heads if b"/metrics" in head.split(b"\r\n", 1)[0]]
    assert heads
    assert all(b"accept-encoding: identity\r\n" in head for head in heads)
    assert all(b"openmetrics" not in head for head in heads)


def test_redirect_is_not_followed(exporter: InProcess, server: h.HostileServer) -> None:
    """A redirected fetch could reach hosts that only the exporter can reach."""
    exporter.wait_for_polls("redirect", 1)
    assert [path for path in server.asked if path.startswith("redirect-goal")] == []


def test_healthy_engine_beside_them_keeps_everything(exporter: InProcess) -> None:
    """Each target stands alone: the healthy one has all series, keeps being polled, and never failed."""
    # Every bad target has failed at least once by then.
    exporter.wait(
        lambda p: all(p.reasons(ERRORS, name) for name in (*BAD, "refused", "redirect")), "every failure"
    )
    before = exporter.scrape().series("healthy")
    after = exporter.wait_for_polls("healthy", 2)
    assert after.series("healthy") == before
    assert after.value("kvcache_bytes_per_token", target="healthy") == LLAMA_BYTES_PER_TOKEN
    assert after.reasons(ERRORS, "healthy") == {}


def test_failed_fetches_leave_no_socket_behind(exporter: InProcess, mute: socket.socket) -> None:
    """A TLS handshake that was cancelled left its socket open for good (httpcore 1.0.9)."""
    port = mute.getsockname()[1]
    exporter.wait_for_polls("mute-tls", 3)
    # /proc/net/tcp: remote address in hex, state 01 is ESTABLISHED. At most the poll that runs now.
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    held = [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    assert len(held) <= 1


def test_other_pages_of_the_web_surface_stand_it(exporter: InProcess) -> None:
    """The landing page and the explanation are there for exactly such days."""
    for path in ("/", "/explain", "/explain?output=json", "/explain?target=silent", "/-/healthy", "/-/ready"):
        assert exporter.get(path).status_code == 200, path
    assert exporter.get("/explain?target=nobody").status_code == 404
    assert exporter.escaped == []
