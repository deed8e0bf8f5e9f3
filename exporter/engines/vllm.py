"""vLLM's vocabulary, 0.6 to 0.33: the only place that knows vLLM's metric names.

Which name lives in which release was read off the releases themselves; quirks
name the release in which they were seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines.exposition import Page, Sample, Vocabulary
from exporter.engines.histogram import itl_histogram, preempted_requests, suffixed
from exporter.engines.sample import (
    NOT_REPORTED,
    EngineSample,
    Identity,
    PrefixCounts,
    Reader,
    ratio,
    whole,
)
from exporter.kvmath.capacity import max_model_len_from
from exporter.kvmath.known import Reason, Unavailable, known

USAGE = ("kv_cache_usage_perc", "gpu_cache_usage_perc")  # new name from 0.9.2, old one to 0.11.2
CONFIG = "cache_config_info"
RUNNING = "num_requests_running"
WAITING = "num_requests_waiting"
PREEMPTIONS = "num_preemptions"
REQUEST_PREEMPTIONS = "request_num_preemptions"
FINISHED = ("request_success", "request_finish")  # NIM exports the second
PROMPT = "prompt_tokens"
PROMPT_CACHED = "prompt_tokens_cached"
CACHED_BY_SOURCE = "prompt_tokens_cached_by_source"
QUERIES, HITS = "prefix_cache_queries", "prefix_cache_hits"
OLD_QUERIES, OLD_HITS = "gpu_prefix_cache_queries", "gpu_prefix_cache_hits"
GENERATED = "generation_tokens"
# New name from 0.10.2, old one to 0.13.0; both observe every gap between two outputs of a request.
ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")
SPECULATIVE = "spec_decode_num_drafts"  # from 0.8.5, and only with speculative decoding on
# Only the V0 engine has these; its pool has no null block (0.6.6 metrics.py).
V0_ONLY = (
    "num_requests_swapped",
    "cpu_cache_usage_perc",
    "cpu_prefix_cache_hit_rate",
    "gpu_prefix_cache_hit_rate",
)

FAMILIES = (
    *USAGE,
    CONFIG,
    RUNNING,
    WAITING,
    PREEMPTIONS,
    f"{REQUEST_PREEMPTIONS}_bucket",
    f"{REQUEST_PREEMPTIONS}_sum",
    f"{REQUEST_PREEMPTIONS}_count",
    *FINISHED,
    PROMPT,
    PROMPT_CACHED,
    CACHED_BY_SOURCE,
    QUERIES,
    HITS,
    OLD_QUERIES,
    OLD_HITS,
    GENERATED,
    SPECULATIVE,
    *V0_ONLY,
    *(name for family in ITL for name in suffixed(family)),
)
PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_")
VOCABULARY = Vocabulary.build("vllm", PREFIXES, FAMILIES)
# NIM drops the prefix, so only names that nobody else would use may stand alone.
BARE_VOCABULARY = Vocabulary.build(
    "vllm", ("",), (*USAGE, RUNNING, WAITING, PREEMPTIONS, *FINISHED, PROMPT, GENERATED, CONFIG)
)

# vLLM's FinishReason words (v1/engine/__init__.py, 0.32.0); anything else is "other".
OUTCOMES = frozenset({"stop", "length", "abort", "error", "repetition"})
# The counters of 0.7.3 and 0.8.5 count blocks; tokens from 0.9.2 on (v1/core/kv_cache_manager.py).
PREFIX_BLOCKS_UNTIL = (0, 8, 5)


def _identify(sample: Sample) -> Identity:
    labels = sample.labels
    return Identity(labels.get("model_name"), labels.get("engine"), labels.get("ReplicaId"))


def read(page: Page, version: tuple[int, ...] | None = None) -> tuple[EngineSample, ...]:
    """One :class:`EngineSample` per engine on the page.

    ``version``: the release, where an info endpoint told it.  The page itself
    does not carry it, and it decides the unit of the oldest prefix counters.
    """
    reader = Reader(page, _identify, frozenset(FAMILIES))
    legacy = _is_v0(reader)
    return tuple(_one(reader, identity, legacy, version) for identity in reader.identities)


def _is_v0(reader: Reader) -> bool:
    """Whether the V0 engine (to 0.10.2) wrote the page.

    Its own gauges are hidden from 0.8.5 on; then it is told by what it lacks:
    V1 counts prefix tokens (0.7.3 on) and labels its engine (0.8.5 on).
    """
    if any(reader.page.get(name) for name in V0_ONLY):
        return True
    labelled = any(
        s.labels.get("engine") is not None for found in reader.page.families.values() for s in found
    )
    return not labelled and not any(reader.page.get(name) for name in (QUERIES, OLD_QUERIES))


def _one(reader: Reader, identity: Identity, legacy: bool, version: tuple[int, ...] | None) -> EngineSample:
    labels = _config_labels(reader, identity)
    size = _label_int(labels, "kv_cache_size_tokens", Reason.KV_CACHE_SIZE_TOKENS)
    concurrency = _label_float(labels, "kv_cache_max_concurrency")
    block = _label_int(labels, "block_size", Reason.BLOCK_SIZE)
    preempted, exact = preempted_requests(reader, REQUEST_PREEMPTIONS, identity)
    return EngineSample(
        software="vllm",
        model_name=identity.model_name or "",
        engine=identity.engine or "",
        replica=identity.replica or "",
        usage_ratio=ratio(reader.first(USAGE, identity)),
        num_blocks=_num_blocks(reader, labels),
        null_blocks=0 if legacy else 1,
        block_tokens=block,
        capacity_tokens=size,
        max_concurrency=concurrency,
        device_pool_bytes=_pool_budget(labels),
        max_model_len=(
            max_model_len_from(size, concurrency) if known(size) and known(concurrency) else NOT_REPORTED
        ),
        cache_dtype=_label(labels, "cache_dtype"),
        state_dtype=_label(labels, "mamba_ssm_cache_dtype"),
        prefix_caching={"True": True, "False": False}.get(_label(labels, "enable_prefix_caching") or ""),
        speculative=True if reader.page.get(SPECULATIVE) else None,
        attention_free=_label(labels, "is_attention_free") == "True",
        running_sequences=whole(reader.value(RUNNING, identity)),
        waiting_sequences=whole(reader.value(WAITING, identity)),
        preemptions=reader.value(PREEMPTIONS, identity),
        preempted_requests=preempted,
        preempted_requests_exact=exact,
        requests=_requests(reader, identity),
        prefix=_prefix(reader, identity, block, version),
        itl=itl_histogram(reader, ITL, identity),
    )


def _config_labels(reader: Reader, identity: Identity) -> Mapping[str, str]:
    samples = reader.samples(CONFIG, identity)
    return samples[0].labels if samples else {}


def _label(labels: Mapping[str, str], name: str) -> str | None:
    # Unset values arrive as the text "None" (0.6 to 0.33).
    value = labels.get(name)
    return None if value in (None, "", "None") else value


def _label_int(labels: Mapping[str, str], name: str, reason: Reason) -> int | Unavailable:
    text = _label(labels, name)
    if text is None or not text.isdecimal() or len(text) > 18 or int(text) <= 0:
        return Unavailable(reason, f"{CONFIG} says {name}={labels.get(name, 'nothing')!s:.40}")
    return int(text)


def _pool_budget(labels: Mapping[str, str]) -> int | Unavailable:
    """Bytes of one GPU that the block count was computed from, where the user set them."""
    if _label(labels, "num_gpu_blocks_override") is not None:
        return Unavailable(Reason.NOT_REPORTED, "the block count was overridden")
    return _label_int(labels, "kv_cache_memory_bytes", Reason.NOT_REPORTED)


def _label_float(labels: Mapping[str, str], name: str) -> float | Unavailable:
    try:
        value = float(_label(labels, name) or "nan")
    except ValueError:
        value = float("nan")
    if 0 < value < 1e12:
        return value
    return Unavailable(Reason.NOT_REPORTED, f"{CONFIG} has no usable {name}")


def _num_blocks(reader: Reader, labels: Mapping[str, str]) -> int | Unavailable:
    """This engine's blocks, the null block included.

    One frontend over several engines repeats their *sum* on each engine's
    series (0.32.0 v1/engine/core_client.py), while ``kv_cache_size_tokens`` is
    each engine's own.
    """
    mine = _label_int(labels, "num_gpu_blocks", Reason.NUM_GPU_BLOCKS)
    series = reader.page.get(CONFIG)
    if isinstance(mine, Unavailable) or len(series) < 2:
        return mine
    all_labels = [s.labels for s in series]
    own = [_blocks_by_size(one) for one in all_labels]
    exact = [n for n in own if n is not None]
    if len(exact) == len(own) and sum(exact) == mine:
        return _blocks_by_size(labels) or mine
    if len({_label(one, "num_gpu_blocks") for one in all_labels}) > 1:
        return mine  # each says its own
    if mine % len(series):
        return Unavailable(Reason.CONTRADICTION, f"{mine} blocks over {len(series)} engines of unequal size")
    return mine // len(series)


def _blocks_by_size(labels: Mapping[str, str]) -> int | None:
    size = _label_int(labels, "kv_cache_size_tokens", Reason.KV_CACHE_SIZE_TOKENS)
    block = _label_int(labels, "block_size", Reason.BLOCK_SIZE)
    return size // block if known(size) and known(block) and size % block == 0 else None


def _requests(reader: Reader, identity: Identity) -> Mapping[str, float] | Unavailable:
    for family in FINISHED:
        samples = reader.samples(family, identity)
        if samples:
            counts: dict[str, float] = {}
            for sample in samples:
                word = sample.labels.get("finished_reason", "")
                word = word if word in OUTCOMES else "other"
                counts[word] = counts.get(word, 0.0) + sample.value
            return counts
    return Unavailable(Reason.NOT_REPORTED, f"{FINISHED[0]} is not on the page")


def _prefix(
    reader: Reader, identity: Identity, block: int | Unavailable, version: tuple[int, ...] | None
) -> PrefixCounts | Unavailable:
    """Prompt-token counters first: the query/hit pair also counts a request
    again each time it is rescheduled after a preemption."""
    prompt, cached = reader.value(PROMPT, identity), reader.value(PROMPT_CACHED, identity)
    if known(prompt) and known(cached):
        by_source = {
            ("", s.labels.get("source", "")): s.value for s in reader.samples(CACHED_BY_SOURCE, identity)
        }
        return PrefixCounts({"": prompt}, by_source or {("", ""): cached})
    queries, hits = reader.value(QUERIES, identity), reader.value(HITS, identity)
    if known(queries) and known(hits):
        return PrefixCounts({"": queries}, {("", ""): hits})
    queries, hits = reader.value(OLD_QUERIES, identity), reader.value(OLD_HITS, identity)
    if not (known(queries) and known(hits)):
        return Unavailable(Reason.NOT_REPORTED, "no prefix cache counters on the page")
    if version is None or PREFIX_BLOCKS_UNTIL < version < (0, 9, 2):
        return Unavailable(Reason.ENGINE_VERSION, f"{OLD_HITS} counts blocks or tokens, by release")
    if version > PREFIX_BLOCKS_UNTIL:
        return PrefixCounts({"": queries}, {("", ""): hits})
    if isinstance(block, Unavailable):
        return block
    return PrefixCounts({"": queries * block}, {("", ""): hits * block})
