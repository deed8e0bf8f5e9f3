"""The demo's engines on real sockets, and the text that goes with them."""

from __future__ import annotations

import asyncio
import re
import signal

import httpx
import pytest

from exporter.demo import NAMES, load, what_to_look_at
from exporter.demo.text import WORTH_WATCHING
from exporter.recording import Replayed, replayed

DEMO = {f"demo-{name}": load(name) for name in NAMES}


async def pages_of(targets: list[Replayed]) -> list[str]:
    """Each target's page of metrics."""
    async with httpx.AsyncClient() as client:
        return [(await client.get(f"{target.url}/metrics")).text for target in targets]


def test_both_engines_answer_while_the_block_runs_and_not_after() -> None:
    """A demo that leaves a listener behind would be found by the next one on the machine."""

    async def run() -> tuple[list[Replayed], list[str], list[bool]]:
        async with replayed(DEMO, clock=lambda: 0.0) as targets:
            pages = await pages_of(targets)
            configs = [target.config_path is not None and target.config_path.is_file() for target in targets]
        with pytest.raises(httpx.ConnectError):
            await pages_of(targets[:1])
        with pytest.raises(httpx.ConnectError):
            await pages_of(targets[1:])
        return targets, pages, configs

    targets, pages, configs = asyncio.run(run())
    assert [target.name for target in targets] == ["demo-vllm", "demo-sglang"]
    assert all(target.url.startswith("http://127.0.0.1:") for target in targets)
    assert "vllm:kv_cache_usage_perc{" in pages[0]
    assert "sglang:full_token_usage{" in pages[1]
    assert configs == [True, True]


def test_signals_stay_with_the_exporter() -> None:
    """uvicorn takes SIGINT and SIGTERM over unless stopped: Ctrl-C would then end only a recorded engine."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def run() -> list[object]:
        async with replayed(DEMO) as targets:
            await pages_of(targets)  # so that both are up
            return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    # asyncio.run puts its own SIGINT handler in place for as long as it runs: SIGTERM is the telling one.
    during = asyncio.run(run())
    assert during[1] == before[1]
    assert "uvicorn" not in repr(during)


def test_an_error_in_the_block_stops_the_engines_and_comes_through() -> None:
    """The exporter's own failure must be what the user reads, not a group wrapped around it."""

    async def run() -> None:
        async with replayed(DEMO):
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        asyncio.run(run())


def test_the_text_names_every_page_and_series() -> None:
    """It is the first thing a newcomer reads: a doubled slash or a missing name would send them astray."""
    text = what_to_look_at("http://127.0.0.1:9400/")
    for page in ("/ ", "/metrics", "/explain"):
        assert f"http://127.0.0.1:9400{page}" in text
    assert "9400//" not in text
    assert all(f"  {metric.name} " in text for metric, _ in WORTH_WATCHING)
    assert "curl -s http://127.0.0.1:9400/metrics | grep " in text
    # Even the widest line must not wrap in a terminal of ordinary width.
    assert max(len(line) for line in text.splitlines()) <= 100


def test_grep_in_the_text_finds_series_and_not_their_help() -> None:
    """A newcomer copies the command: its pattern must hit samples of both families, at line start."""
    (pattern,) = re.findall(r"grep -E '([^']+)'", what_to_look_at("http://127.0.0.1:9400"))
    page = (
        "# HELP kvcache_usage_ratio h\n"
        'kvcache_usage_ratio{target="a"} 0.5\n'
        'kvcache_max_sequences{target="a",context="4096"} 2\n'
        "kvcache_engine_up 1\n"
    )
    assert [bool(re.match(pattern, line)) for line in page.splitlines()] == [False, True, True, False]
