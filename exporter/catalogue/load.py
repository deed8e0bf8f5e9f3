"""Sequences, pressure, prefix cache, and how far to trust it all."""

from __future__ import annotations

from exporter.catalogue.metric import Group, metric

RUNNING_SEQUENCES = metric(
    "gauge", "running_sequences", Group.SEQUENCES, (), "Sequences being run.", "engine"
)
WAITING_SEQUENCES = metric("gauge", "waiting_sequences", Group.SEQUENCES, (), "Sequences queued.", "engine")
MAX_SEQUENCES = metric(
    "gauge",
    "max_sequences",
    Group.SEQUENCES,
    ("context",),
    "Sequences of this many tokens that the whole pool holds, without sharing.",
    "arithmetic",
)
FREE_SEQUENCES = metric(
    "gauge",
    "free_sequences",
    Group.SEQUENCES,
    ("context",),
    "Sequences of this many tokens that fit into what is free now.",
    "arithmetic",
)
MAX_MODEL_LEN_TOKENS = metric(
    "gauge", "max_model_len_tokens", Group.SEQUENCES, (), "Longest context served.", "engine, else config"
)
TOKENS_PER_SEQUENCE = metric(
    "gauge",
    "tokens_per_sequence",
    Group.SEQUENCES,
    (),
    "Used tokens over running sequences; absent while nothing runs.",
    "engine",
)
WHATIF_MAX_SEQUENCES = metric(
    "gauge",
    "whatif_max_sequences",
    Group.SEQUENCES,
    ("context", "kv_cache_dtype"),
    "max_sequences if the same pool bytes held a cache of another dtype.",
    "arithmetic",
)

PREEMPTIONS = metric(
    "counter",
    "preemptions_total",
    Group.PRESSURE,
    (),
    "Preemption (vLLM) or retraction (SGLang) events; one request may be hit several times.",
    "engine",
)
PREEMPTED_REQUESTS = metric(
    "counter",
    "preempted_requests_total",
    Group.PRESSURE,
    (),
    "Finished requests that were preempted at least once (vLLM from 0.32).",
    "engine",
)
PREEMPTED_REQUESTS_LOWER_BOUND = metric(
    "gauge",
    "preempted_requests_lower_bound",
    Group.PRESSURE,
    (),
    "1 where preempted_requests_total is a lower bound: the buckets do not tell how often a request was hit.",
    "engine",
)
REQUESTS = metric(
    "counter", "requests_total", Group.PRESSURE, ("outcome",), "Requests that ended, by outcome.", "engine"
)
EVICTED_TOKENS = metric(
    "counter",
    "evicted_tokens_total",
    Group.PRESSURE,
    (),
    "Cached tokens evicted to make room (SGLang from 0.5.7).",
    "engine (SGLang)",
)

PREFIX_QUERY_TOKENS = metric(
    "counter",
    "prefix_query_tokens_total",
    Group.PREFIX_CACHE,
    ("route",),
    "Prompt tokens that the prefix cache could have served; with the cache off all of them miss.",
    "engine",
)
PREFIX_HIT_TOKENS = metric(
    "counter",
    "prefix_hit_tokens_total",
    Group.PREFIX_CACHE,
    ("route", "cache_source"),
    "Prompt tokens found in the prefix cache.",
    "engine",
)
PREFIX_HIT_OBJECTIVE = metric(
    "gauge",
    "prefix_hit_objective_ratio",
    Group.PREFIX_CACHE,
    ("route",),
    "Hit ratio that this route was designed for, from the settings; absent elsewhere.",
    "setting",
)
PREFIX_MATCHABLE_TOKENS = metric(
    "gauge",
    "prefix_matchable_tokens",
    Group.PREFIX_CACHE,
    (),
    "One block: a shorter common prefix cannot hit.",
    "engine",
)

ARITHMETIC_RATIO = metric(
    "gauge",
    "arithmetic_ratio",
    Group.TRUST,
    (),
    "Our figure over the engine's own where it reports one; 1 is agreement. Of several checks the worst.",
    "arithmetic, engine",
)
UNAVAILABLE = metric(
    "gauge",
    "exporter_unavailable",
    Group.TRUST,
    ("signal", "reason"),
    "1 for every series that is missing, with the reason (an input's name where that input is missing).",
    "exporter",
)
INPUT_ASSUMED = metric(
    "gauge",
    "exporter_input_assumed",
    Group.TRUST,
    ("input",),
    "1 for every input of the arithmetic that nobody told: the engine's own default was taken.",
    "exporter",
)
INPUT_CONTRADICTION = metric(
    "gauge",
    "exporter_input_contradiction",
    Group.TRUST,
    ("input", "used", "other"),
    "1 where two sources say different things about an input; the one in `used` is taken.",
    "exporter",
)
