"""Pages far too large: cut or thinned out, in bounded memory, while the engine beside stays watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import hostile as h
from .engines import page, vllm
from .page import DROPPED, ERRORS, Page
from .running import Program

MIB = 2**20
# What one hostile page may cost on top of everyday life.
GROWTH_LIMIT = 150 * MIB

FILLER = b'vllm:some_histogram_bucket{le="1.0",model_name="llama"} 1.0\n' * 4096  # 245 kB
BOMB = h.gzip_bomb(1024 * MIB)
# One wanted family in 200,000 series: more than any engine has reasons to finish a request.
MANY = page() + "".join(f'vllm:request_success_total{{finished_reason="r{n}"}} 1\n' for n in range(200_000))
# One wanted line whose label is 22 MB.
LONG = page() + 'vllm:request_success_total{finished_reason="' + "x" * 22_000_000 + '"} 1\n'


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"healthy": vllm(), "engine": vllm()}) as running:
        yield running


def _program(server: h.HostileServer, folder: Path, *flags: str) -> Program:
    server.engines["engine"] = vllm()
    targets = {name: server.url(name) for name in ("engine", "healthy")}
    return Program(folder / "log", *Program.targets(targets, folder), "--hub", "false", *flags)


@pytest.fixture(scope="module")
def small(server: h.HostileServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The default page limit of 8 MiB."""
    with _program(server, tmp_path_factory.mktemp("small")) as running:
        yield running


@pytest.fixture(scope="module")
def large(server: h.HostileServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A page limit of 32 MiB, so that other limits have to act."""
    with _program(server, tmp_path_factory.mktemp("large"), "--max-page-bytes", str(32 * MIB)) as running:
        yield running


def _growth(
    program: Program, server: h.HostileServer, metrics: h.Answer, counter: str, reason: str
) -> tuple[Page, int]:
    """A scrape after two polls of this page, and the peak of memory on the way above what it was.

    The healthy engine must have been polled meanwhile, and keep its series.  Of ``counter`` the
    page must raise one reason, which is checked here.
    """
    server.engines["engine"] = vllm()
    program.wait(lambda p: p.values("kvcache_engine_up") == [1.0, 1.0], "both engines up")
    quiet = program.wait_for_polls("engine", 1)
    resident, before = program.resident_bytes(), quiet.reasons(counter, "engine")
    program.forget_peak()
    server.engines["engine"] = vllm(metrics=metrics)
    program.wait(lambda p: p.reasons(counter, "engine") != before, "the page was met")
    seen = program.wait_for_polls("healthy", 1)
    after = seen.reasons(counter, "engine")
    assert {r for r, count in after.items() if count > before.get(r, 0)} == {reason}
    assert seen.series("healthy") == quiet.series("healthy")
    assert seen.reasons(ERRORS, "healthy") == {}
    growth = program.peak_bytes() - resident
    print(f"grew by {growth / MIB:.0f} MiB")
    return seen, growth


def test_200_mb_page_is_cut(small: Program, server: h.HostileServer) -> None:
    """Read up to the limit and no further."""
    answer = h.endless(FILLER, times=200_000_000 // len(FILLER), Content_Type="text/plain")
    _, growth = _growth(small, server, answer, ERRORS, "too_large")
    assert growth < GROWTH_LIMIT


def test_gzip_bomb_is_not_inflated(small: Program, server: h.HostileServer) -> None:
    """About a megabyte that wants to be a gigabyte."""
    assert len(BOMB) < 2 * MIB
    _, growth = _growth(small, server, h.body(BOMB, Content_Encoding="gzip"), ERRORS, "too_large")
    # Inflating no more than one read of 64 kB would already be 64 MiB, held twice.
    assert growth < GROWTH_LIMIT / 3


def test_bytes_after_the_gzip_body_are_not_kept(small: Program, server: h.HostileServer) -> None:
    """The end of a compressed page comes early, and 200 MB follow: none of them may be collected."""
    whole = h.zipped(page().encode())
    answer = h.endless(FILLER, whole, times=200_000_000 // len(FILLER), Content_Encoding="gzip")
    _, growth = _growth(small, server, answer, ERRORS, "bad_encoding")
    assert growth < GROWTH_LIMIT / 3


def test_22_mb_label_is_left_out(large: Program, server: h.HostileServer) -> None:
    """The page is small enough to be read; its one absurd line is not, and the rest counts."""
    seen, growth = _growth(large, server, h.body(LONG), DROPPED, "line_too_long")
    assert seen.reasons(ERRORS, "engine") == {}
    assert seen.value("kvcache_running_sequences", target="engine") == 9
    assert growth < GROWTH_LIMIT


def test_200_000_series_are_thinned_out(large: Program, server: h.HostileServer) -> None:
    """Further series of a wanted family are dropped by number; ours stay few."""
    seen, growth = _growth(large, server, h.body(MANY), DROPPED, "too_many_series")
    assert seen.reasons(ERRORS, "engine") == {}
    assert seen.value("kvcache_running_sequences", target="engine") == 9
    assert len(seen.samples) < 1000
    assert growth < GROWTH_LIMIT
