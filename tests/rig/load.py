"""Load whose truth the client knows: how many tokens each request has sent and received."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from .controls import Controls, VllmControls
from .page import Page
from .waiting import wait_until

_PATIENCE_S = 120.0
_VOCABULARY = range(3, 1024)  # without the three special tokens of the rig's models


def prompts(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    """One prompt of token ids per length, no two of which share a first block."""
    source = random.Random(seed)
    return [source.choices(_VOCABULARY, k=length) for length in lengths]


@dataclass(slots=True, eq=False)
class Request:
    """One request as its client sees it."""

    prompt_tokens: int
    sent: bool = False
    received_tokens: int = 0
    finished: bool = False
    started_at: float = field(default_factory=time.monotonic)
    """Seconds of a clock that all requests share."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def computed_tokens(self) -> int:
        """Tokens whose cache the engine holds while nothing moves.

        The last token received is sampled, but its cache is computed in the step after.
        """
        return self.prompt_tokens + self.received_tokens - 1

    @property
    def ttft_seconds(self) -> float:
        """From sending it to reading its first token; raises ValueError before that."""
        if self.first_token_at is None:
            raise ValueError("no token has come")
        return self.first_token_at - self.started_at

    @property
    def gap_seconds(self) -> float:
        """The mean gap between its tokens; raises ValueError where there is none."""
        if self.first_token_at is None or self.last_token_at is None or self.received_tokens < 2:
            raise ValueError("no gap has been seen")
        return (self.last_token_at - self.first_token_at) / (self.received_tokens - 1)


# Tokens short of its goal at which `hold` asks for the first pause.
CREEP_TOKENS = 24


class Load:
    """Streamed requests to one engine, with the engine's scheduler on a switch."""

    def __init__(self, client: httpx.AsyncClient, model_name: str, controls: Controls) -> None:
        """Use `client`, whose base URL is the engine."""
        self._client = client
        self._model_name = model_name
        self._controls = controls
        self.requests: list[Request] = []
        self._generated_before = 0.0
        self._progress = asyncio.Event()

    async def begin(self) -> None:
        """Start counting; the engine must be idle."""
        self._generated_before = self._controls.generated_tokens(await self.scrape())

    def start(
        self, prompt: Sequence[int], max_tokens: int, headers: Mapping[str, str] | None = None
    ) -> Request:
        """Send a request and return while it runs; it generates `max_tokens`, whatever the tokens are."""
        request = Request(len(prompt))
        self.requests.append(request)
        request.task = asyncio.create_task(self._stream(request, list(prompt), max_tokens, headers or {}))
        request.task.add_done_callback(lambda _: self._progress.set())  # a failure is progress too
        return request

    async def run(
        self, prompt: Sequence[int], max_tokens: int, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a request and return when it has finished."""
        self.start(prompt, max_tokens, headers)
        await self.finish()

    async def start_together(
        self, texts: Sequence[Sequence[int]], max_tokens: int, held_seconds: float = 0.0
    ) -> None:
        """Send requests to an engine that is held still until the last one has been sent, and for so long.

        Else the first may have ended before the last arrives, where sending is slow and generating is quick.
        """
        await self.pause()
        for prompt in texts:
            self.start(prompt, max_tokens)
        async with asyncio.timeout(_PATIENCE_S):
            while not all(r.sent for r in self.requests):
                await self._progress.wait()
                self._progress.clear()
                self._raise_failures()
        await asyncio.sleep(held_seconds)
        await self.resume()

    async def finish_with_gaps(self, after_tokens: Sequence[int], held_seconds: float) -> None:
        """Run to the end, held still for so long each time all have received so many tokens.

        The gaps that this makes are long beside what a busy machine adds to the way of a token.
        """
        for tokens in after_tokens:
            await self.hold(tokens)
            await asyncio.sleep(held_seconds)
            await self.resume()
        await self.finish()

    async def finish(self) -> None:
        """Wait for the end of every request; raises what went wrong in one."""
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.gather(*(r.task for r in self.requests if r.task is not None))

    async def hold(self, received_tokens: int = 2) -> None:
        """Once every request has received that many tokens, hold the engine still.

        At least two: a window layer lets go of what it no longer sees one step after its prefill. On return
        the client has read every token that was generated.
        """

        # Woken by every token, not by a clock: a lone request makes hundreds of tokens a second. The engine
        # goes on while a pause is on its way, so the pause is asked for early and the rest is crept. On a
        # busy machine a client hears of its first tokens many steps late: a short way is all crept.
        early = received_tokens - CREEP_TOKENS
        async with asyncio.timeout(_PATIENCE_S):
            while not all(r.received_tokens >= early for r in self.requests):
                await self._progress.wait()
                self._progress.clear()
                self._raise_failures()
            await self.pause()
            while not all(r.received_tokens >= received_tokens for r in self.requests):
                await self.resume()
                await self.pause()

    async def pause(self) -> None:
        """Hold the scheduler still at once; requests keep their blocks, new ones queue.

        On return the client has read every token that was generated.
        """
        await self._controls.pause(self._client)

        async def all_read() -> bool:
            self._raise_failures()
            generated = self._controls.generated_tokens(await self.scrape())
            received = [r.received_tokens for r in self.requests]
            return generated - self._generated_before == self._controls.counted_tokens(received)

        await wait_until(all_read, _PATIENCE_S, "reading what was generated before the pause")

    async def resume(self) -> None:
        """Let the scheduler go on."""
        await self._controls.resume(self._client)

    async def hang_up(self, request: Request) -> None:
        """Give up one request while it runs, as a client does that closes its connection."""
        if request.task is not None:
            request.task.cancel()
            await asyncio.gather(request.task, return_exceptions=True)
            self.requests.remove(request)

    async def idle(self) -> None:
        """Wait until the engine has nothing left to do."""

        async def at_rest() -> bool:
            return self._controls.requests_in_engine(await self.scrape()) == 0

        await wait_until(at_rest, _PATIENCE_S, "the engine at rest")

    async def abandon(self) -> None:
        """Hang up on every request that still runs and leave the engine running and idle."""
        tasks = [r.task for r in self.requests if r.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.resume()
        await self.idle()

    async def scrape(self) -> Page:
        """The engine's own /metrics."""
        answer = await self._client.get("/metrics")
        return Page.parse(answer.raise_for_status().text)

    def _raise_failures(self) -> None:
        for request in self.requests:
            if request.task is not None and request.task.done():
                request.task.result()

    async def _stream(
        self, request: Request, prompt: list[int], max_tokens: int, headers: Mapping[str, str]
    ) -> None:
        body = {
            "model": self._model_name,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            # A count in every chunk: several tokens may share a chunk, and some have no text.
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }

        async def trace(event: str, _: object) -> None:
            if event == "http11.send_request_body.complete":
                request.sent = True
                self._progress.set()

        async with self._client.stream(
            "POST", "/v1/completions", json=body, headers=headers, extensions={"trace": trace}
        ) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise RuntimeError(f"the engine refused: {chunk['error']}")
                received = chunk["usage"]["completion_tokens"]
                if received > request.received_tokens:
                    request.last_token_at = time.monotonic()
                    request.first_token_at = request.first_token_at or request.last_token_at
                request.received_tokens = received
                self._progress.set()
        if request.received_tokens != max_tokens:
            raise RuntimeError(f"asked for {max_tokens} tokens, got {request.received_tokens}")
        request.finished = True


@asynccontextmanager
async def load(engine_url: str, model_name: str, controls: Controls | None = None) -> AsyncIterator[Load]:
    """Load on an idle engine; afterwards, whatever happened, the engine is running and idle again."""
    async with httpx.AsyncClient(
        base_url=engine_url,
        timeout=_PATIENCE_S,
        # One per request, all at once. Dropped before the engine's server drops them (5 s, which is httpx's
        # default as well): else now and then a request goes out on a connection that is just being closed.
        limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        trust_env=False,
    ) as client:
        one = Load(client, model_name, controls or VllmControls())
        await one.begin()
        try:
            yield one
        finally:
            await one.abandon()
