"""How often an engine is polled that takes long for its page."""

from __future__ import annotations

import asyncio

import httpx
import pytest
import respx

from exporter.access import engine_client
from exporter.settings import ServeSettings, TargetSettings
from exporter.watch import FETCH_MEMORY, TargetWatch

URL = "http://127.0.0.1:9"
PAGE = 'vllm:num_requests_running{engine="0",model_name="m"} 0\n'


@pytest.mark.parametrize(
    ("share", "seconds"),
    [
        # 0.3 s are 1 % of 30 s, more than the 15 s there are at most; 10 % of 3 s; all of 0.3 s.
        (0.01, 15.0),
        (0.1, 3.0),
        (1.0, 2.0),
    ],
)
def test_a_slow_page_is_fetched_less_often(share: float, seconds: float) -> None:
    """The share is the user's to choose; the interval asked for is the shortest there is."""
    now = [0.0]
    settings = ServeSettings(
        target=[TargetSettings(url=URL)], poll_interval=2.0, fetch_share=share, hub=False
    )
    watch = TargetWatch(settings, 0, lambda: now[0])

    def slow(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/metrics":
            return httpx.Response(404)
        now[0] += 0.3
        return httpx.Response(200, text=PAGE)

    async def polls() -> None:
        async with engine_client(watch.target) as client:
            for _ in range(FETCH_MEMORY):
                await watch.poll(client)

    with respx.mock(base_url=URL) as engine:
        engine.route().mock(side_effect=slow)
        asyncio.run(polls())

    assert watch.state.up
    assert watch.state.interval == pytest.approx(seconds)
