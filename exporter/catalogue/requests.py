"""Latency by context, who holds the cache, what it costs: out of finished requests."""

from __future__ import annotations

from exporter.catalogue.metric import CATALOGUE, PREFIX, Group, Metric, metric
from exporter.catalogue.ourselves import own

# Records belong to a target, not to an engine rank, and outlive the engine.
RECORD = ("target", "model_name")
RECORDS = "records"


def by_request(kind: str, name: str, group: Group, extra: tuple[str, ...], help_text: str) -> Metric:
    """An entry over finished requests."""
    made = Metric(PREFIX + name, kind, group, (*RECORD, *extra), help_text, RECORDS)
    CATALOGUE.append(made)
    return made


ITL_SECONDS = by_request(
    "histogram",
    "itl_seconds",
    Group.LATENCY,
    ("context", "source", "route"),
    "Inter-token latency: a request's mean gap, one observation per request of two output tokens or more, "
    "in the tier of its final context (prompt and output; the label is the upper bound).",
)
TTFT_SECONDS = by_request(
    "histogram",
    "ttft_seconds",
    Group.LATENCY,
    ("context", "source", "route"),
    "Time to first token, one observation per request, by tier of its final context.",
)
REQUEST_CONTEXT_TOKENS = by_request(
    "histogram",
    "request_context_tokens",
    Group.HELD,
    (),
    "Final context of finished requests, in tokens.",
)
CONTEXT_REQUESTS = by_request(
    "counter", "context_requests_total", Group.HELD, ("context", "route"), "Finished requests by tier."
)
HELD_TOKEN_SECONDS = by_request(
    "counter",
    "held_token_seconds_total",
    Group.HELD,
    ("context", "route"),
    "Area under the cache footprint of finished requests, in token-seconds: prompt * prefill + decode * "
    "(prompt + (output - 1) / 2). Its shares are the tiers' shares of the pool.",
)
CONTEXT_PREEMPTED_REQUESTS = by_request(
    "counter",
    "context_preempted_requests_total",
    Group.HELD,
    ("context", "route"),
    "Finished requests that were preempted or retracted at least once, by tier (log, plugin).",
)
CONTEXT_PROMPT_TOKENS = by_request(
    "counter",
    "context_prompt_tokens_total",
    Group.HELD,
    ("context", "route"),
    "Prompt tokens of finished requests, by tier.",
)
CONTEXT_CACHED_TOKENS = by_request(
    "counter",
    "context_cached_tokens_total",
    Group.HELD,
    ("context", "route"),
    "Prompt tokens of finished requests that were found in the prefix cache, by tier (all but vLLM's trace).",
)
HELD_COST = by_request(
    "counter",
    "held_cost_dollars_total",
    Group.MONEY,
    ("context", "route"),
    "Held token-seconds at --price-per-hour, the whole pool costing that much; what is free is nobody's.",
)

SEQUENCE_COST = metric(
    "gauge",
    "sequence_cost_dollars_per_hour",
    Group.MONEY,
    ("context",),
    "What one sequence of this many tokens costs: its share of the pool (of all the target's ranks) at "
    "--price-per-hour.",
    "setting, arithmetic",
)

RECORDS_RECEIVED = own(
    "counter", "exporter_records_received_total", ("source",), "Reports of finished requests, good or bad."
)
RECORDS_DROPPED = own(
    "counter",
    "exporter_records_dropped_total",
    ("source", "reason"),
    "Reports that were not counted: impossible values, or a better source reports the same requests.",
)
RECORDS_DUPLICATE = own(
    "counter", "exporter_records_duplicate_total", ("source",), "Reports of a request already counted."
)
PROBES = own("counter", "exporter_probes_total", (), "Requests of our own sent to the engine.")
PROBES_FAILED = own("counter", "exporter_probes_failed_total", (), "Requests of our own that failed.")
SPANS_IGNORED = own("counter", "exporter_spans_ignored_total", (), "Spans received that are no requests.")
BODIES_RECEIVED = own(
    "counter", "exporter_record_bodies_total", (), "Bodies sent to the receivers (traces, plugin)."
)
BODIES_REFUSED = own(
    "counter",
    "exporter_record_bodies_refused_total",
    ("reason",),
    "Bodies that the receivers refused as a whole.",
)
FORWARDED = own(
    "counter", "exporter_forwarded_bodies_total", (), "Trace exports passed on to --forward-traces."
)
FORWARD_DROPPED = own(
    "counter",
    "exporter_forward_dropped_bodies_total",
    ("reason",),
    "Trace exports that were not passed on: the queue was full, or the collector refuses them.",
)
