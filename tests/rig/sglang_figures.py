"""What a page of ours has to say about an SGLang: pure functions of the truth and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter import catalogue as c

from . import claims
from .checks import Figure
from .page import Page
from .sglang_truth import SglangModel


def capacity(model: SglangModel, logged: tuple[int, int], told_bytes: float, ours: Page) -> Iterator[Figure]:
    """The pool, against the engine's log (tokens, context), its own bytes and the sum by hand."""
    tokens, context = logged
    pages = model.capacity_tokens // model.page_tokens
    yield Figure(claims.CAPACITY_TOKENS, tokens, ours.maybe(c.CAPACITY_TOKENS.name))
    yield Figure(claims.BLOCKS_BY_HAND, pages, ours.maybe(c.CAPACITY_BLOCKS.name))
    yield Figure(claims.BYTES_TOLD, round(told_bytes), ours.maybe(c.CAPACITY_BYTES.name))
    yield Figure(claims.CAPACITY_BYTES, model.pool_bytes, ours.maybe(c.CAPACITY_BYTES.name))
    yield Figure(claims.MAX_MODEL_LEN, context, ours.maybe(c.MAX_MODEL_LEN_TOKENS.name))
    yield Figure(claims.BYTES_PER_TOKEN, model.token_bytes, ours.maybe(c.BYTES_PER_TOKEN.name))
    yield Figure(claims.ARITHMETIC_RATIO, 1, ours.maybe(c.ARITHMETIC_RATIO.name))
    for length, fit in model.fits.items():
        yield Figure(
            claims.FITS_BY_HAND,
            fit,
            ours.maybe(c.MAX_SEQUENCES.name, context=str(length)),
            f"of {length} tokens",
        )


def counters(engine: Page, ours: Page) -> Iterator[Figure]:
    """The counters, against the engine's own of the same moment; its first event creates each."""
    for claim, name, metric in (
        (claims.PREEMPTIONS, "sglang:num_retracted_requests_total", c.PREEMPTIONS),
        (claims.EVICTED, "sglang:evicted_tokens_total", c.EVICTED_TOKENS),
    ):
        told = float(sum(sample.value for sample in engine.all(name)))
        yield Figure(claim, told, ours.maybe(metric.name))


def held(
    model: SglangModel,
    lengths: Sequence[int],
    ours: Page,
    *,
    shared_tokens: int = 0,
    waiting: int = 0,
    free_slots: float | None = None,
) -> Iterator[Figure]:
    """A picture: sequences of these computed lengths are held still, and nothing else is there.

    `free_slots`: what the engine says is free; with it, used, cached and free have to be the pool.
    """
    case = f"{len(lengths)} of {min(lengths)} to {max(lengths)} tokens"
    used = model.slots_of_all(lengths) - model.shared(shared_tokens)
    yield Figure(
        claims.SHARED_BLOCKS if shared_tokens else claims.USED_TOKENS,
        used,
        ours.maybe(c.USED_TOKENS.name),
        case,
    )
    yield Figure(claims.USED_BLOCKS, used / model.page_tokens, ours.maybe(c.USED_BLOCKS.name), case)
    yield Figure(claims.USED_BYTES, used * model.token_bytes, ours.maybe(c.USED_BYTES.name), case)
    yield Figure(claims.USAGE_RATIO, used / model.capacity_tokens, ours.maybe(c.USAGE_RATIO.name), case)
    yield Figure(claims.RUNNING, len(lengths), ours.maybe(c.RUNNING_SEQUENCES.name), case)
    yield Figure(claims.WAITING, waiting, ours.maybe(c.WAITING_SEQUENCES.name), case)
    for context in model.fits:
        yield Figure(
            claims.FREE,
            (model.capacity_tokens - used) // model.slots(context),
            ours.maybe(c.FREE_SEQUENCES.name, context=str(context)),
            f"{case}; of {context} more",
        )
    if free_slots is not None:
        # Every slot is in use, cached or free.
        used_now, cached = ours.maybe(c.USED_TOKENS.name), ours.maybe(c.CACHED_TOKENS.name)
        total = None if used_now is None or cached is None else used_now + cached + free_slots
        yield Figure(claims.POOL_SUM, model.capacity_tokens, total, case)
