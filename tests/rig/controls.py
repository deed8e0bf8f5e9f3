"""How the scheduler of an engine is held still, and how its page tells what has been generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import httpx

from .page import Page


def _sum(page: Page, *names: str, **labels: str) -> float:
    """The sum over all samples of these names; 0 where an engine has not created them yet."""
    return float(sum(sample.value for name in names for sample in page.all(name, **labels)))


class Controls(Protocol):
    """What load needs to know about one make of engine."""

    async def pause(self, client: httpx.AsyncClient) -> None:
        """Hold the scheduler still with all requests in place; on return it does no further step."""

    async def resume(self, client: httpx.AsyncClient) -> None:
        """Let the scheduler go on."""

    def generated_tokens(self, page: Page) -> float:
        """Tokens generated so far, as the page counts them while requests are running."""

    def counted_tokens(self, received: Sequence[int]) -> int:
        """What `generated_tokens` has to come to when requests have received so many tokens each."""

    def requests_in_engine(self, page: Page) -> float:
        """Requests that run or wait."""


class VllmControls:
    """vLLM 0.32.0 in its developer mode."""

    async def pause(self, client: httpx.AsyncClient) -> None:
        """Requests keep their blocks, new ones queue."""
        # clear_cache has to be refused, whatever its help says ("ignored when mode=keep"): in 0.32.0
        # (v1/engine/core.py, _finish_pause) it resets the prefix cache, which preempts all running requests.
        answer = await client.post("/pause", params={"mode": "keep", "clear_cache": "false"})
        answer.raise_for_status()

    async def resume(self, client: httpx.AsyncClient) -> None:
        """Let the scheduler go on."""
        (await client.post("/resume")).raise_for_status()

    def generated_tokens(self, page: Page) -> float:
        """Every token, counted as it is generated."""
        return page.total("vllm:generation_tokens_total")

    def counted_tokens(self, received: Sequence[int]) -> int:
        """All of them."""
        return sum(received)

    def requests_in_engine(self, page: Page) -> float:
        """Requests that run or wait."""
        return page.total("vllm:num_requests_running") + page.total("vllm:num_requests_waiting")


class SglangControls:
    """SGLang 0.5.23 with --decode-log-interval 1, so that its gauges are of the last step."""

    async def pause(self, client: httpx.AsyncClient) -> None:
        """Requests keep their slots, new ones queue."""
        (await client.post("/pause_generation", json={"mode": "in_place"})).raise_for_status()
        # It answers before the scheduler has heard of it (managers/tokenizer_manager.py). This question goes
        # down the same queue and is answered by the scheduler, so by then the pause has been obeyed.
        (await client.get("/server_info")).raise_for_status()

    async def resume(self, client: httpx.AsyncClient) -> None:
        """Let the scheduler go on."""
        (await client.post("/continue_generation", json={})).raise_for_status()

    def generated_tokens(self, page: Page) -> float:
        """Tokens of decode steps; generation_tokens_total counts a request when it has finished."""
        return _sum(page, "sglang:realtime_tokens_total", mode="decode")

    def counted_tokens(self, received: Sequence[int]) -> int:
        """All but the first of each request, which comes out of its prefill."""
        return sum(max(0, tokens - 1) for tokens in received)

    def requests_in_engine(self, page: Page) -> float:
        """Requests that run or wait."""
        return _sum(page, "sglang:num_running_reqs", "sglang:num_queue_reqs")
