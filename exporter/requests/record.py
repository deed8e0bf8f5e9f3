"""One finished request, whoever reported it; and why a report may be refused.

Engine-side facts only: token counts and times.  No prompt, no answer, no user.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

N = TypeVar("N", int, float)

# Ten million tokens is the longest context any public model claims; beyond this a count is noise.
MAX_TOKENS = 2**24
# A request that ran for longer than a week did not.
MAX_SECONDS = 7 * 86400.0
# Clocks of two machines may differ by this much before "finished in the future" is an error.
CLOCK_SKEW_S = 300.0
MAX_TEXT = 256


class Source(StrEnum):
    """Where a record came from; the words are the label ``source``."""

    TRACE = "trace"
    LOG = "log"
    PLUGIN = "plugin"
    PROBE = "probe"


class Drop(StrEnum):
    """Why a record was not counted; the words are the label ``reason``."""

    MISSING_FIELD = "missing_field"  # no token counts, or no finish time
    TOKENS_OUT_OF_RANGE = "tokens_out_of_range"
    TIME_OUT_OF_RANGE = "time_out_of_range"  # negative, not a number, or longer than a week
    IN_FUTURE = "in_future"
    MALFORMED = "malformed"  # a span or line that is not one
    TOO_LONG = "too_long"  # a span or line beyond its cap
    SENDER_QUEUE = "sender_queue"  # the plugin could not deliver in time and dropped it
    OWN_PROBE = "own_probe"  # the exporter's own probe, as the engine reports it
    LESSER_SOURCE = "lesser_source"  # a better source reports the same requests


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A report that cannot be right."""

    reason: Drop
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A finished request.  ``None``: the source does not tell.

    ``prefill_seconds`` runs from the first scheduling to the first token,
    ``decode_seconds`` from the first token to the last; ``finished_at_seconds``
    is a Unix time; ``request_id`` is the engine's.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    finished_at_seconds: float
    source: Source
    ttft_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    queue_seconds: float | None = None
    e2e_seconds: float | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    route: str = ""

    @property
    def context_tokens(self) -> int:
        """Final context: prompt and output."""
        return self.prompt_tokens + self.output_tokens

    @property
    def itl_seconds(self) -> float | None:
        """Mean gap between output tokens; None below two of them."""
        if self.decode_seconds is None or self.output_tokens < 2:
            return None
        return self.decode_seconds / (self.output_tokens - 1)

    @property
    def held_token_seconds(self) -> float | None:
        """Area under the request's cache footprint, in token-seconds.

        ``prompt * prefill + decode * (prompt + (output - 1) / 2)``: the prompt is
        held through prefill; decode starts with the prompt in the cache, every
        step adds one token, and the last token sampled is never cached.  A shared
        prefix counts for every request that uses it.  A lower bound on blocks
        (the last one is rarely full) and, for a request that was preempted, an
        upper one: it held nothing while it waited to come back.
        """
        if self.prefill_seconds is None or (self.decode_seconds is None and self.output_tokens > 1):
            return None
        grown = self.prompt_tokens + max(0, self.output_tokens - 1) / 2
        return self.prompt_tokens * self.prefill_seconds + (self.decode_seconds or 0.0) * grown


def make_record(
    *,
    source: Source,
    now_seconds: float,
    request_id: object = "",
    prompt_tokens: object,
    output_tokens: object,
    finished_at_seconds: object,
    ttft_seconds: object = None,
    prefill_seconds: object = None,
    decode_seconds: object = None,
    queue_seconds: object = None,
    e2e_seconds: object = None,
    cached_tokens: object = None,
    preemptions: object = None,
    route: object = "",
) -> RequestRecord | RejectedRecord:
    """A record out of whatever was sent: every value is checked, none is trusted.

    Where the decode time is missing but the others are there, it is what is left
    of the whole after the first token (releases before vLLM's V1 engine).
    """
    try:
        prompt = _there(_tokens(prompt_tokens, "prompt_tokens", least=1), "prompt_tokens")
        output = _there(_tokens(output_tokens, "output_tokens"), "output_tokens")
        finished = _there(_number(finished_at_seconds, "finished_at_seconds"), "finished_at_seconds")
        _check_finish(finished, now_seconds)
        ttft, e2e = _seconds(ttft_seconds, "ttft_seconds"), _seconds(e2e_seconds, "e2e_seconds")
        decode = _seconds(decode_seconds, "decode_seconds")
        if decode is None and ttft is not None and e2e is not None and e2e >= ttft:
            decode = e2e - ttft
        cached = _tokens(cached_tokens, "cached_tokens")
        return RequestRecord(
            request_id=_text(request_id),
            prompt_tokens=prompt,
            output_tokens=output,
            finished_at_seconds=finished,
            source=source,
            ttft_seconds=ttft,
            prefill_seconds=_seconds(prefill_seconds, "prefill_seconds"),
            decode_seconds=decode,
            queue_seconds=_seconds(queue_seconds, "queue_seconds"),
            e2e_seconds=e2e,
            # A request that came back after a preemption may hit its own prompt again.
            cached_tokens=None if cached is None else min(cached, prompt),
            preemptions=_tokens(preemptions, "preemptions"),
            route=_text(route),
        )
    except _RejectedError as why:
        return RejectedRecord(why.reason, why.detail)


class _RejectedError(Exception):
    def __init__(self, reason: Drop, detail: str) -> None:
        self.reason = reason
        self.detail = detail


def _there(value: N | None, name: str) -> N:
    if value is None:
        raise _RejectedError(Drop.MISSING_FIELD, name)
    return value


def _check_finish(finished: float, now: float) -> None:
    if finished <= 0:
        raise _RejectedError(Drop.TIME_OUT_OF_RANGE, "finished_at_seconds")
    if finished > now + CLOCK_SKEW_S:
        raise _RejectedError(Drop.IN_FUTURE, f"finishes {finished - now:.0f} s from now")


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    # bool is an int to Python; nobody's token count is True.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _RejectedError(Drop.MISSING_FIELD, f"{name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        tokens = name.endswith("_tokens")
        raise _RejectedError(
            Drop.TOKENS_OUT_OF_RANGE if tokens else Drop.TIME_OUT_OF_RANGE, f"{name} is not finite"
        )
    return number


def _tokens(value: object, name: str, least: int = 0) -> int | None:
    number = _number(value, name)
    if number is None:
        return None
    if not least <= number <= MAX_TOKENS or number != int(number):
        raise _RejectedError(Drop.TOKENS_OUT_OF_RANGE, name)
    return int(number)


def _seconds(value: object, name: str) -> float | None:
    number = _number(value, name)
    if number is not None and not 0 <= number <= MAX_SECONDS:
        raise _RejectedError(Drop.TIME_OUT_OF_RANGE, name)
    return number


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
