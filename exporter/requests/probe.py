"""The active probe: small streaming requests of our own, one tier after the other, at a low rate.

What a user's client would see between tokens, measured from outside, and also
while nobody uses the engine.  Off by default: a probe takes part in the
engine's own metrics, and a long one takes a sequence's worth of the cache.  Its
prompt is the same every time, so that a prefix cache spares the prefill; that
is why a probe tells nothing about the time to the first token.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import httpx

from exporter.log import log
from exporter.requests.record import RejectedRecord, Source, make_record
from exporter.requests.sink import RecordSink

OUTPUT_TOKENS = 16
TIMEOUT_S = 60.0
# An ordinary token of any vocabulary: special ones are the lowest or the highest ids.
TOKEN = 100
MAX_LINE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Engine:
    """What a probe must know of its engine now."""

    model_name: str
    sglang: bool
    max_model_len_tokens: float | None


class Probe:
    """Probes one target; ``engine``: what is known of it, None while it is down."""

    def __init__(
        self,
        url: str,
        sink: RecordSink,
        contexts: Sequence[int],
        engine: Callable[[], Engine | None],
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``contexts``: final contexts to probe, in tokens; ``clock``: seconds, any epoch."""
        self._url = url
        self._sink = sink
        self._engine = engine
        self._interval = interval_seconds
        self._clock = clock
        # The tier's label is its upper bound, and a probe goes up to it.
        usable = sorted(n for n in set(contexts) if n > OUTPUT_TOKENS)
        self._turns: Iterator[int] = cycle(usable) if usable else iter(())
        self._said = ""

    async def run(self, client: httpx.AsyncClient) -> None:
        """Probe until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            await self.once(client)

    async def once(self, client: httpx.AsyncClient) -> bool:
        """One probe in the next tier; False where there was none, or it failed (then it was counted)."""
        engine, context = self._engine(), next(self._turns, None)
        if engine is None or not engine.model_name or context is None:
            return False
        if engine.max_model_len_tokens is not None and context > engine.max_model_len_tokens:
            return False
        self._sink.probes_sent += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                prompt, output, seconds = await self._stream(client, engine, context - OUTPUT_TOKENS)
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError, TimeoutError) as error:
            return self._failed(str(error) or type(error).__name__)
        now = time.time()
        record = make_record(
            source=Source.PROBE,
            now_seconds=now,
            request_id=f"{self._sink.probe_mark}-{self._sink.probes_sent}",
            prompt_tokens=prompt,
            output_tokens=output,
            finished_at_seconds=now,
            decode_seconds=seconds,
        )
        if isinstance(record, RejectedRecord):
            self._sink.reject(record, Source.PROBE)
            return self._failed(record.detail)
        self._said = ""
        return self._sink.accept(record)

    def _failed(self, why: str) -> bool:
        self._sink.probes_failed += 1
        if not self._said:
            log.warning("probe failed", target=self._sink.target, detail=why[:300])
        self._said = why
        return False

    async def _stream(
        self, client: httpx.AsyncClient, engine: Engine, prompt_tokens: int
    ) -> tuple[object, object, float]:
        """Prompt tokens, output tokens (as the engine counted them), first to last token in seconds."""
        name = f"{self._sink.probe_mark}-{self._sink.probes_sent}"
        body: dict[str, object] = {
            "model": engine.model_name,
            "prompt": [TOKEN] * prompt_tokens,
            "max_tokens": OUTPUT_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if engine.sglang:
            body["rid"] = name  # vLLM takes the header instead
        first = last = None
        usage: dict[str, object] = {}
        headers = {"X-Request-Id": name}
        async with client.stream(
            "POST", f"{self._url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S
        ) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if len(line) > MAX_LINE_BYTES:
                    raise ValueError("a line of the answer is too long")
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                at = self._clock()
                chunk = json.loads(line.removeprefix("data: "))
                if not isinstance(chunk, dict):
                    raise TypeError("the answer is no stream of objects")
                if chunk.get("choices"):
                    first, last = first if first is not None else at, at
                usage = chunk.get("usage") or usage
        if first is None or last is None:
            raise ValueError("the answer has no tokens")
        return usage["prompt_tokens"], usage["completion_tokens"], last - first
