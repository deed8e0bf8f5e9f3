"""SGLang's vocabulary, 0.4.6 to 0.5.23: with ``sglang_prefix`` the only place that knows its metric names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.engines.exposition import Page, Sample, Vocabulary
from exporter.engines.histogram import itl_histogram, suffixed
from exporter.engines.sample import EngineSample, Identity, Reader, ratio, whole
from exporter.engines.sglang_prefix import (
    CACHED,
    FINISHED,
    PREFILL,
    PROMPT,
    by_request,
    has_routes,
    prefix_counts,
)
from exporter.kvmath.known import Reason, Unavailable, known

# Scheduler families: one series per rank.
FULL_USAGE, USAGE, SWA_USAGE, MAMBA_USAGE = (
    "full_token_usage",
    "token_usage",
    "swa_token_usage",
    "mamba_usage",
)
USED, AVAILABLE, EVICTABLE = "kv_used_tokens", "kv_available_tokens", "kv_evictable_tokens"
OLD_USED = "num_used_tokens"
CAPACITY, SWA_CAPACITY = "max_total_num_tokens", "max_total_num_tokens_swa"
MAMBA_POOL = ("mamba_used_tokens", "mamba_available_tokens", "mamba_evictable_tokens")
SWA_USED = "swa_used_tokens"
OTHER_POOLS = (SWA_USAGE, MAMBA_USAGE, SWA_CAPACITY, *MAMBA_POOL)
PAGE, CONTEXT = "page_size", "context_len"
POOL_GB = "kv_cache_memory_usage_gb"
RUNNING, WAITING = "num_running_reqs", "num_queue_reqs"
RETRACTED = "num_retracted_requests"
DRAFTS = "spec_num_draft_tokens"  # from 0.5.15, 0 without speculative decoding
HIT_RATE = "cache_hit_rate"  # never used as a figure: it is the last prefill batch only
SCHEDULER = (
    *(FULL_USAGE, USAGE, SWA_USAGE, MAMBA_USAGE),
    *(USED, AVAILABLE, EVICTABLE, OLD_USED, CAPACITY, SWA_CAPACITY, SWA_USED),
    *(PAGE, CONTEXT, POOL_GB, RUNNING, WAITING, RETRACTED, PREFILL, DRAFTS, HIT_RATE),
    *MAMBA_POOL,
)
# Tokenizer families: one set for all data-parallel ranks, custom labels possible.
ITL = ("inter_token_latency_seconds",)
TOKENIZER = (PROMPT, CACHED, FINISHED, *suffixed(ITL[0]))
# The radix cache's own: no model name, and dp_rank "0" even where the scheduler has none (0.5.23).
EVICTED = "evicted_tokens"

VOCABULARY = Vocabulary.build("sglang", ("sglang:", "sglang_"), (*SCHEDULER, *TOKENIZER, EVICTED))

RANK_LABELS = ("pp_rank", "tp_rank", "moe_ep_rank", "pid")
# A family on the page proves the release is at least this one.
FIRST_SEEN = {
    POOL_GB: (0, 5, 18),
    PREFILL: (0, 5, 18),
    USED: (0, 5, 12),
    CONTEXT: (0, 5, 12),
    FULL_USAGE: (0, 5, 10),
    CAPACITY: (0, 5, 7),
}
# Counters are created by their first event; absent means 0 from the release that has them.
EVENT_COUNTERS_SINCE = {RETRACTED: (0, 5, 7), EVICTED: (0, 5, 7), CACHED: (0, 4, 3)}


def _identify(sample: Sample) -> Identity:
    labels = sample.labels
    # Releases before 0.4.3 called the model "name".
    return Identity(labels.get("model_name", labels.get("name")), labels.get("dp_rank"))


def read(page: Page, version: tuple[int, ...] | None = None) -> tuple[EngineSample, ...]:
    """One :class:`EngineSample` per data-parallel rank, plus one for the whole
    server where several ranks share request counters.

    ``version``: the release, where an info endpoint told it; else the page's
    families give a lower bound.
    """
    gpus = _gpus(page)
    page = _lowest_ranks(page)
    naming = frozenset(SCHEDULER if any(page.get(name) for name in SCHEDULER) else TOKENIZER)
    reader = Reader(page, _identify, naming)
    release = version or max((v for name, v in FIRST_SEEN.items() if page.get(name)), default=None)
    ranks = tuple(
        replace(
            _one(reader, identity, release),
            tensor_ranks=gpus.get(identity.engine, (None, None))[0],
            pipeline_ranks=gpus.get(identity.engine, (None, None))[1],
        )
        for identity in reader.identities
    )
    if len(reader.identities) < 2:
        return ranks
    # Counters without a rank label fit every rank, so the reader gave them to none.
    together = Identity(reader.identities[0].model_name, None)
    server = Reader(page, lambda s: replace(_identify(s), engine=None), frozenset(TOKENIZER))
    prefix = by_request(server, together, release)
    shared = EngineSample(
        software="sglang",
        model_name=together.model_name or "",
        whole_server=True,
        requests=_requests(server, together),
        prefix=prefix
        if known(prefix) and (has_routes(page) or not page.get(PREFILL))
        else Unavailable(Reason.NOT_REPORTED, "counted per rank"),
        itl=itl_histogram(server, ITL, together),
    )
    if known(shared.prefix):
        ranks = tuple(
            replace(rank, prefix=Unavailable(Reason.NOT_REPORTED, "counted for all ranks together"))
            for rank in ranks
        )
    return (*ranks, shared)


def _lowest_ranks(page: Page) -> Page:
    """One series where tensor and pipeline ranks repeat the same figure."""
    families: dict[str, tuple[Sample, ...]] = {}
    for name, samples in page.families.items():
        kept: dict[frozenset[tuple[str, str]], tuple[tuple[int, ...], Sample]] = {}
        for sample in samples:
            rest = frozenset((k, v) for k, v in sample.labels.items() if k not in RANK_LABELS)
            order = tuple(_int(sample.labels.get(label, "0")) for label in RANK_LABELS)
            if rest not in kept or order < kept[rest][0]:
                kept[rest] = (order, sample)
        families[name] = tuple(sample for _, sample in kept.values())
    return replace(page, families=families)


def _gpus(page: Page) -> dict[str | None, tuple[int | None, int | None]]:
    """(tensor, pipeline) ranks of each data-parallel rank as the page shows them.

    Constants come from every tensor rank (0.5.23); a single one proves nothing,
    older releases speak for rank 0 only.
    """
    seen: dict[str | None, tuple[set[str], set[str]]] = {}
    for sample in page.get(CAPACITY):
        tensor, pipeline = seen.setdefault(sample.labels.get("dp_rank"), (set(), set()))
        tensor.add(sample.labels.get("tp_rank", "0"))
        pipeline.add(sample.labels.get("pp_rank", "0"))
    return {
        engine: (len(tensor) if len(tensor) > 1 else None, len(pipeline) if len(pipeline) > 1 else None)
        for engine, (tensor, pipeline) in seen.items()
    }


def _int(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _one(reader: Reader, identity: Identity, release: tuple[int, ...] | None) -> EngineSample:
    capacity = whole(reader.value(CAPACITY, identity))
    page_tokens = whole(reader.value(PAGE, identity))
    used = _used_tokens(reader, identity, capacity)
    cached = whole(reader.value(EVICTABLE, identity))
    pool = reader.value(POOL_GB, identity)
    window = whole(reader.value(SWA_CAPACITY, identity))
    drafts = reader.value(DRAFTS, identity)
    return EngineSample(
        software="sglang",
        model_name=identity.model_name or "",
        engine=identity.engine or "",
        usage_ratio=_usage(reader, identity, used, capacity),
        num_blocks=(
            capacity // page_tokens
            if known(capacity) and known(page_tokens) and page_tokens and capacity % page_tokens == 0
            else Unavailable(Reason.NOT_REPORTED, "no capacity in whole pages on the page")
        ),
        block_tokens=page_tokens,
        capacity_tokens=capacity,
        used_tokens=used,
        cached_tokens=cached,
        window_capacity_tokens=window,
        window_used_tokens=whole(reader.value(SWA_USED, identity)),
        state_slots=_state_slots(reader, identity),
        used_state_slots=whole(reader.value(MAMBA_POOL[0], identity)),
        # Named "gb", counted in GiB; one padding page included (0.5.18 on).
        device_pool_bytes=whole((pool * 2**30 + 0.5) // 1) if known(pool) else pool,
        max_model_len=whole(reader.value(CONTEXT, identity)),
        several_pools=_several_pools(reader, identity),
        speculative=drafts > 0 if known(drafts) else None,
        running_sequences=whole(_before_first_batch(reader, reader.value(RUNNING, identity))),
        waiting_sequences=whole(_before_first_batch(reader, reader.value(WAITING, identity))),
        preemptions=_event_counter(reader, identity, RETRACTED, release),
        preempted_requests=Unavailable(
            Reason.NOT_REPORTED, "the engine counts retractions, not the requests hit"
        ),
        requests=_requests(reader, identity),
        evicted_tokens=_event_counter(reader, identity, EVICTED, release),
        prefix=prefix_counts(reader, identity, release),
        itl=itl_histogram(reader, ITL, identity),
    )


def _before_first_batch(reader: Reader, value: float | Unavailable) -> float | Unavailable:
    # Constants are there from the start, gauges only after the first batch, or after 30 s without one
    # (0.5.23, managers/scheduler_components/metrics_reporter.py).
    if not known(value) and reader.page.get(CAPACITY) and not reader.page.get(RUNNING):
        return Unavailable(Reason.NO_TRAFFIC, "the engine has not run a batch yet")
    return value


def _hybrid(reader: Reader, identity: Identity) -> bool:
    """True where window or state pools exist, so that the older figures,
    which are the fullest pool's, do not speak of the full-attention pool."""
    return any(known(value := reader.value(name, identity)) and value > 0 for name in OTHER_POOLS)


def _several_pools(reader: Reader, identity: Identity) -> bool | None:
    # The gauges of state and window pools exist from 0.5.12 on, 0 where the model has none.
    if _hybrid(reader, identity):
        return True
    return False if known(reader.value(MAMBA_POOL[0], identity)) else None


def _state_slots(reader: Reader, identity: Identity) -> int | Unavailable:
    """The gauges named tokens count slots; together they are the pool (0.5.12 on, 0 without one)."""
    parts = [whole(reader.value(name, identity)) for name in MAMBA_POOL]
    counts = [part for part in parts if known(part)]
    return sum(counts) if len(counts) == len(parts) else next(p for p in parts if not known(p))


def _used_tokens(reader: Reader, identity: Identity, capacity: int | Unavailable) -> int | Unavailable:
    used = whole(reader.value(USED, identity))
    available, evictable = reader.value(AVAILABLE, identity), reader.value(EVICTABLE, identity)
    if not known(used) and known(capacity) and known(available) and known(evictable):
        used = whole(capacity - available - evictable)
    if not known(used):
        old = whole(reader.value(OLD_USED, identity))
        if known(old) and not _hybrid(reader, identity):
            used = old
    if known(used) and known(capacity) and not 0 <= used <= capacity:
        return Unavailable(Reason.OUT_OF_RANGE, f"{used} tokens used of {capacity}")
    return whole(_before_first_batch(reader, used))


def _usage(
    reader: Reader, identity: Identity, used: int | Unavailable, capacity: int | Unavailable
) -> float | Unavailable:
    full = ratio(reader.value(FULL_USAGE, identity))
    if known(full):
        return full
    if known(used) and known(capacity) and capacity:
        return used / capacity
    rounded = ratio(reader.value(USAGE, identity))
    if known(rounded) and _hybrid(reader, identity):
        return Unavailable(Reason.NOT_REPORTED, f"{USAGE} is the fullest pool's, not the KV cache's")
    return _before_first_batch(reader, rounded)


def _event_counter(
    reader: Reader, identity: Identity, family: str, release: tuple[int, ...] | None
) -> float | Unavailable:
    value = reader.total(family, identity)
    if (
        not known(value)
        and not reader.page.get(family)
        and release
        and release >= EVENT_COUNTERS_SINCE[family]
    ):
        return 0.0
    return value


def _requests(reader: Reader, identity: Identity) -> Mapping[str, float] | Unavailable:
    # Includes requests aborted while they ran. num_aborted_requests counts abort calls, those
    # same requests among them, so the two must not stand side by side and be added up
    # (0.5.23 managers/tokenizer_manager.py).
    finished = reader.total(FINISHED, identity)
    return {"finished": finished} if known(finished) else finished
