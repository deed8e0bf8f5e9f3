"""What a page of ours has to say about a vLLM: pure functions of the truth and the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from exporter import catalogue as c

from . import claims
from .checks import Figure
from .engine import CapacityLine, MeasuredPool
from .page import Page
from .truth import RigModel

# Of this size each tensor is a segment of its own: below 10 MiB several share one of 20.
DRIVER_SEES_BYTES = 2**30


def capacity(
    model: RigModel, log: CapacityLine, engine: Page, ours: Page, ranks: int = 1
) -> Iterator[Figure]:
    """The pool, against the engine's log, its info metric and the sum by hand.

    Of several groups the tokens can't be had by arithmetic: without the engine's word, no series is right.
    `ranks`: tensor-parallel ranks, each with a pool of so many blocks; `model` is what they hold together.
    """
    labels = engine.one("vllm:cache_config_info").labels
    # Since about 0.30.
    tells_tokens = labels.get("kv_cache_size_tokens", "None") != "None"
    tokens = log.kv_cache_tokens if tells_tokens or len(model.groups) == 1 else None
    yield Figure(claims.CAPACITY_TOKENS, tokens, ours.maybe(c.CAPACITY_TOKENS.name))
    yield Figure(claims.CAPACITY_BLOCKS, int(labels["num_gpu_blocks"]), ours.maybe(c.CAPACITY_BLOCKS.name))
    yield Figure(claims.BLOCKS_BY_HAND, model.num_blocks, ours.maybe(c.CAPACITY_BLOCKS.name))
    yield Figure(
        claims.CAPACITY_BYTES, model.num_blocks * model.block_bytes, ours.maybe(c.CAPACITY_BYTES.name)
    )
    yield Figure(claims.MAX_MODEL_LEN, log.max_model_len_tokens, ours.maybe(c.MAX_MODEL_LEN_TOKENS.name))
    yield Figure(claims.BYTES_PER_TOKEN, model.token_bytes, ours.maybe(c.BYTES_PER_TOKEN.name))
    yield Figure(
        claims.BYTES_PER_TOKEN,
        model.token_bytes / ranks,
        ours.maybe(c.DEVICE_BYTES_PER_TOKEN.name),
        "on one rank",
    )
    yield Figure(claims.STATE_BYTES, model.state_bytes, ours.maybe(c.STATE_BYTES_PER_SEQUENCE.name))
    yield Figure(claims.ARITHMETIC_RATIO, 1, ours.maybe(c.ARITHMETIC_RATIO.name))
    for context, fit in model.fits.items():
        yield Figure(
            claims.FITS_BY_HAND,
            fit,
            ours.maybe(c.MAX_SEQUENCES.name, context=str(context)),
            f"of {context} tokens",
        )


def memory(measured: MeasuredPool, ours: Page) -> Iterator[Figure]:
    """The pool's bytes, against torch and, on a GPU, its allocator and, of a big pool, the driver."""
    said = ours.maybe(c.CAPACITY_BYTES.name)
    yield Figure(claims.TENSOR_BYTES, measured.tensor_bytes, said)
    if measured.allocated_bytes is not None:
        yield Figure(claims.ALLOCATOR_BYTES, measured.allocated_bytes, said)
    if measured.device_bytes is not None and measured.tensor_bytes >= DRIVER_SEES_BYTES:
        yield Figure(claims.DRIVER_BYTES, measured.device_bytes, said, times=measured.tensors + 4)


def pool(log: CapacityLine, engine: Page, ours: Page) -> Iterator[Figure]:
    """A pool of one group whose size the engine chose: against what it says itself."""
    labels = engine.one("vllm:cache_config_info").labels
    yield Figure(claims.CAPACITY_TOKENS, log.kv_cache_tokens, ours.maybe(c.CAPACITY_TOKENS.name))
    yield Figure(claims.CAPACITY_BLOCKS, int(labels["num_gpu_blocks"]), ours.maybe(c.CAPACITY_BLOCKS.name))
    yield Figure(claims.MAX_MODEL_LEN, log.max_model_len_tokens, ours.maybe(c.MAX_MODEL_LEN_TOKENS.name))


def held(model: RigModel, lengths: Sequence[int], ours: Page, shared_blocks: int = 0) -> Iterator[Figure]:
    """A picture: sequences of these computed lengths are held still, and nothing else is there."""
    case = f"{len(lengths)} of {min(lengths)} to {max(lengths)} tokens"
    used = model.blocks_of_all(lengths) - shared_blocks
    one_group = len(model.groups) == 1
    yield Figure(
        claims.SHARED_BLOCKS if shared_blocks else claims.USED_BLOCKS,
        used,
        ours.maybe(c.USED_BLOCKS.name),
        case,
    )
    yield Figure(claims.USED_BYTES, used * model.block_bytes, ours.maybe(c.USED_BYTES.name), case)
    yield Figure(claims.USAGE_RATIO, used / model.usable_blocks, ours.maybe(c.USAGE_RATIO.name), case)
    # A block belongs to one group: with several, blocks times their size are not tokens; no series is right.
    tokens = used * model.block_size if one_group else None
    yield Figure(claims.USED_TOKENS, tokens, ours.maybe(c.USED_TOKENS.name), case)
    yield Figure(claims.RUNNING, len(lengths), ours.maybe(c.RUNNING_SEQUENCES.name), case)
    yield Figure(claims.WAITING, 0, ours.maybe(c.WAITING_SEQUENCES.name), case)
    for context in model.fits:
        yield Figure(
            claims.FREE,
            (model.usable_blocks - used) // model.peak_blocks(context),
            ours.maybe(c.FREE_SEQUENCES.name, context=str(context)),
            f"{case}; of {context} more",
        )


def counters(engine: Page, ours: Page) -> Iterator[Figure]:
    """The counters, against the engine's own of the same moment."""
    yield Figure(
        claims.PREEMPTIONS, engine.total("vllm:num_preemptions_total"), ours.maybe(c.PREEMPTIONS.name)
    )
    yield Figure(
        claims.FINISHED_TOLD, engine.total("vllm:request_success_total"), ours.total(c.REQUESTS.name)
    )
    yield Figure(
        claims.PREFIX_HITS_TOLD,
        engine.total("vllm:prompt_tokens_cached_total"),
        ours.total(c.PREFIX_HIT_TOKENS.name),
    )


def preempted_at_least_once(engine: Page) -> float:
    """Requests off vLLM's histogram: all events, less the second, third, ... of each request.

    A request preempted k times lies above the bounds 1 to k - 1. Raises LookupError where somebody was
    preempted more than five times: up to there the histogram has every bound.
    """
    family = "vllm:request_num_preemptions"
    requests = engine.total(f"{family}_count")

    def above(bound: int) -> float:
        return requests - engine.total(f"{family}_bucket", le=f"{bound}.0")

    if above(5):
        raise LookupError("preempted more than five times: the histogram does not say how often")
    return engine.total(f"{family}_sum") - sum(above(bound) for bound in (1, 2, 3, 4))


def overload(
    engine_before: Page, engine: Page, before: Page, after: Page, requests: int, prompt_tokens: int
) -> Iterator[Figure]:
    """So many requests at once, more than the pool holds: who was preempted, what was looked up."""
    if engine.all("vllm:request_num_preemptions_count"):  # since 0.32
        hit = after.value(c.PREEMPTED_REQUESTS.name) - before.value(c.PREEMPTED_REQUESTS.name)
        told = preempted_at_least_once(engine) - preempted_at_least_once(engine_before)
        yield Figure(claims.PREEMPTED_TOLD, told, hit, "overload")
    else:
        yield Figure(claims.PREEMPTED_TOLD, None, after.maybe(c.PREEMPTED_REQUESTS.name), "not told")
    yield Figure(
        claims.FINISHED, requests, after.total(c.REQUESTS.name) - before.total(c.REQUESTS.name), "overload"
    )
    # Unlike the raw lookups, which count a preempted request's prompt once more each time it comes back.
    yield Figure(
        claims.PREFIX_QUERIES,
        requests * prompt_tokens,
        after.total(c.PREFIX_QUERY_TOKENS.name) - before.total(c.PREFIX_QUERY_TOKENS.name),
        "overload",
    )
