"""The page itself beside a real vLLM: more work than its pool holds wakes somebody, an idle engine ends it.

Prometheus, Alertmanager and the rules are the real ones; only intervals are shorter.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from alerts.rules import thresholds
from tests.alerts.promtool import needs
from tests.alerts.stand import Inbox, Prometheus, alertmanager, quick_rules

from . import claims
from .load import Load, load, prompts
from .stands import Stand
from .truth import LLAMA

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

ALERT = "KVCacheUsageHigh"
HOLD_S = 8
# 40 sequences of 10 to 16 blocks want 400 blocks at least, and the pool has 299: somebody always waits for 10
# blocks, so the scheduler never leaves more than a handful free.
CLIENTS = 40
PROMPT_TOKENS = 300


async def _client(one: Load, number: int, stop: asyncio.Event) -> None:
    """Send one request after the other until told to stop; the last one is finished."""
    for turn in count():
        if stop.is_set():
            return
        # Lengths differ, so that not all end in one step and leave the pool empty for a moment.
        [prompt] = prompts(1000 * number + turn, [PROMPT_TOKENS])
        request = one.start(prompt, max_tokens=120 + (37 * number + 11 * turn) % 80)
        assert request.task is not None
        await request.task


def _history(prometheus: Prometheus, state: str) -> list[float]:
    """When the alert was in that state, in seconds since the epoch, one figure per evaluation."""
    found = prometheus.query(f'ALERTS{{alertname="{ALERT}",alertstate="{state}"}}[1h]')
    return [float(at) for one in found for at, _ in one["values"]]


def _values_before(prometheus: Prometheus, at: datetime) -> set[str]:
    """What the gauge showed in the 15 s up to then, as the text spells it."""
    query = "kvcache_usage_ratio[15s]"
    [found] = prometheus.get("query", query=query, time=str(at.timestamp()))["result"]
    return {f"{float(value) * 100:.4g}%" for _, value in found["values"]}


@pytest.mark.parametrize("stand", [LLAMA], indirect=True, ids=lambda model: model.name)
def test_a_full_pool_pages_and_an_idle_one_resolves(stand: Stand, tmp_path: Path) -> None:
    """From the engine's blocks to the telephone, and back."""
    for program in ("prometheus", "prometheus-alertmanager"):
        needs(program)
    listen = stand.sidecar.url.removeprefix("http://")
    with (
        Inbox() as inbox,
        alertmanager(inbox, tmp_path) as manager,
        Prometheus(quick_rules(ALERT, f"{HOLD_S}s"), tmp_path, [listen], manager.url) as prometheus,
    ):
        prometheus.wait_ready()
        prometheus.wait_for(lambda: bool(prometheus.query("kvcache_usage_ratio == 0")), "an idle engine seen")
        assert prometheus.state(ALERT) == "inactive"

        path, fired, delay_seconds = asyncio.run(_under_load(stand, prometheus, inbox))
        stand.checks.check(
            claims.ALERT_DELAY,
            expected=HOLD_S + claims.ALERT_WAITS_S / 2,
            got=delay_seconds,
            case=f"{ALERT}, for {HOLD_S} s",
        )
        assert path == "/page"
        assert fired["labels"] == {
            "alertname": ALERT,
            "severity": "critical",
            "job": "kv",
            "instance": listen,
            "namespace": "llm",
            "pod": "p-0",
            "target": stand.engine.url.removeprefix("http://"),
            "model_name": "llama",
            "engine": "0",
        }
        told = fired["annotations"]
        target = fired["labels"]["target"]
        assert told["summary"] == f"KV cache nearly full: llama (rank 0) on {target}, pod p-0"
        text = re.match(r"(\S+%) of the KV cache pool is in use, threshold 85%\. ", told["description"])
        assert text is not None, told["description"]
        # The number is the engine's, not one of another time or of another unit.
        assert text[1] in _values_before(prometheus, datetime.fromisoformat(fired["startsAt"]))
        assert told["runbook_url"].endswith("/KVCacheUsageHigh.md")

        pending, firing = _history(prometheus, "pending"), _history(prometheus, "firing")
        # Read from what was recorded: whoever looks in time may still miss a state of a few seconds.
        assert firing[0] - pending[0] >= HOLD_S
        assert pending[-1] < firing[0]

        path, resolved = inbox.wait(ALERT, "resolved")
        assert path == "/page"
        assert resolved["fingerprint"] == fired["fingerprint"]
        prometheus.wait_state(ALERT, "inactive")
        assert not stand.sidecar.scrape_fresh().value("kvcache_used_blocks")


async def _under_load(
    stand: Stand, prometheus: Prometheus, inbox: Inbox
) -> tuple[str, dict[str, Any], float]:
    """The page that comes while clients keep the pool full, and how many seconds after the pool crossed.

    On return the clients have had their last answer.
    """
    stop = asyncio.Event()
    async with load(stand.engine.url, stand.engine.model_name) as one, asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(_client(one, number, stop))
        try:
            waiting = asyncio.create_task(asyncio.to_thread(inbox.wait, ALERT, "firing"))
            crossed_at = await _held_above(one)
            page = await waiting
            delay_seconds = time.monotonic() - crossed_at
            # Nobody was told before it was true, nor that it was over while it was not.
            assert [m for _, m in inbox.messages if m["status"] == "resolved"] == []
            # What the text says to look at first is there to be looked at.
            assert await asyncio.to_thread(prometheus.query, "kvcache_waiting_sequences > 0")
        finally:
            stop.set()
            await one.resume()
    return (*page, delay_seconds)


async def _held_above(one: Load) -> float:
    """Hold the engine still with its pool above the threshold; since when it was, as `time.monotonic` has it.

    By the engine's own page. Held, because a moment below it would have the alert's `for` begin anew.
    """
    limit = float(thresholds()["usage_high"]["ratio"])

    async def above() -> bool:
        return (await one.scrape()).total("vllm:kv_cache_usage_perc") > limit

    async with asyncio.timeout(60):
        while True:
            crossed_at = time.monotonic()
            if await above():
                await one.pause()
                if await above():
                    return crossed_at
                await one.resume()
            await asyncio.sleep(0.05)
