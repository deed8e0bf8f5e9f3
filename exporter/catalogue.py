"""Every metric we export, once: name, type, labels, help, where it comes from.

The only place that knows our metric names.  The README's table is generated
from here (``python -m exporter.catalogue --readme README.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kvcache_"
# Labels that name one engine rank; empty ones are left out of a series.
RANK = ("target", "model_name", "engine", "replica")


class Group(StrEnum):
    """Headings of the metric table."""

    IDENTITY = "Identity"
    COST = "What a token costs"
    POOL = "The pool"
    SEQUENCES = "Sequences"
    PRESSURE = "Pressure"
    PREFIX_CACHE = "Prefix cache"
    TRUST = "Trust"
    OURSELVES = "The exporter itself"


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family."""

    name: str
    kind: str  # gauge | counter | histogram | info
    group: Group
    labels: tuple[str, ...]
    help: str
    source: str

    @property
    def signal(self) -> str:
        """The word for this metric in the ``signal`` label: its own name."""
        return self.name


CATALOGUE: list[Metric] = []


def _metric(
    kind: str,
    name: str,
    group: Group,
    extra: tuple[str, ...],
    help_text: str,
    source: str,
    *,
    rank: bool = True,
) -> Metric:
    metric = Metric(PREFIX + name, kind, group, (*(RANK if rank else ("target",)), *extra), help_text, source)
    CATALOGUE.append(metric)
    return metric


def _own(kind: str, name: str, extra: tuple[str, ...], help_text: str) -> Metric:
    return _metric(kind, name, Group.OURSELVES, extra, help_text, "exporter", rank=False)


ENGINE_INFO = _metric(
    "gauge",
    "engine_info",
    Group.IDENTITY,
    (
        *("software", "version", "kv_cache_dtype", "kv_cache_dtype_source", "block_size", "attention"),
        *("config_source", "tensor_parallel_size", "pipeline_parallel_size", "parallel_source"),
    ),
    "1; what the engine is, and where its configuration was learned: config_source for config.json, "
    "*_source for the other inputs (engine, setting, command_line, config, default).",
    "engine, config",
)
ENGINE_UP = _metric(
    "gauge",
    "engine_up",
    Group.IDENTITY,
    (),
    "1 while a page of a known engine was read recently, else 0.",
    "exporter",
    rank=False,
)

BYTES_PER_TOKEN = _metric(
    "gauge",
    "bytes_per_token",
    Group.COST,
    (),
    "KV cache bytes that one more token takes at long context, all GPUs of the replica together, "
    "replicated copies counted.",
    "arithmetic",
)
DEVICE_BYTES_PER_TOKEN = _metric(
    "gauge",
    "device_bytes_per_token",
    Group.COST,
    (),
    "KV cache bytes that one more token takes on one GPU (with pipeline stages, the one with most layers).",
    "arithmetic",
)
STATE_BYTES_PER_SEQUENCE = _metric(
    "gauge",
    "state_bytes_per_sequence",
    Group.COST,
    (),
    "Recurrent state bytes of one sequence at any length, all GPUs of the replica; 0 for attention only.",
    "arithmetic",
)
# Known together or not at all: all three need the layout.
TOKEN_COST = (BYTES_PER_TOKEN, DEVICE_BYTES_PER_TOKEN, STATE_BYTES_PER_SEQUENCE)
SEQUENCE_BYTES = _metric(
    "gauge",
    "sequence_bytes",
    Group.COST,
    ("context",),
    "Most bytes that one sequence holds on its way to this many tokens once prefill is over, "
    "all GPUs of the replica.",
    "arithmetic",
)
MODEL_WEIGHTS_BYTES = _metric(
    "gauge",
    "model_weights_bytes",
    Group.COST,
    (),
    "Bytes of the checkpoint's tensors as stored (safetensors).",
    "checkpoint",
)

USAGE_RATIO = _metric(
    "gauge",
    "usage_ratio",
    Group.POOL,
    (),
    "Share of the KV cache pool in use, 0..1. Cached but reclaimable blocks count as free.",
    "engine",
)
CAPACITY_TOKENS = _metric(
    "gauge",
    "capacity_tokens",
    Group.POOL,
    (),
    "Tokens that the pool holds; with several cache groups the engine's figure at max_model_len.",
    "engine, else arithmetic",
)
USED_TOKENS = _metric(
    "gauge",
    "used_tokens",
    Group.POOL,
    (),
    "Tokens' worth of blocks in use: an upper bound on live tokens, shared prefixes counted once. "
    "Absent with several cache groups.",
    "engine",
)
CACHED_TOKENS = _metric(
    "gauge",
    "cached_tokens",
    Group.POOL,
    (),
    "Tokens cached for reuse and held by nobody: resident, but reclaimable at once.",
    "engine (SGLang)",
)
CAPACITY_BYTES = _metric(
    "gauge",
    "capacity_bytes",
    Group.POOL,
    (),
    "Bytes of the KV cache pool, all GPUs of the replica.",
    "engine, else arithmetic",
)
USED_BYTES = _metric(
    "gauge", "used_bytes", Group.POOL, (), "Bytes of the pool in use, all GPUs of the replica.", "arithmetic"
)
CAPACITY_BLOCKS = _metric(
    "gauge",
    "capacity_blocks",
    Group.POOL,
    (),
    "Blocks (vLLM, null block included) or pages (SGLang).",
    "engine",
)
USED_BLOCKS = _metric("gauge", "used_blocks", Group.POOL, (), "Blocks or pages in use.", "engine")
SAMPLED_USAGE_RATIO = _metric(
    "histogram",
    "sampled_usage_ratio",
    Group.POOL,
    (),
    "usage_ratio as seen at every poll, weighted by poll intervals; the share above the 0.85 boundary "
    "is the share of time above 85 %.",
    "exporter",
)

RUNNING_SEQUENCES = _metric(
    "gauge", "running_sequences", Group.SEQUENCES, (), "Sequences being run.", "engine"
)
WAITING_SEQUENCES = _metric("gauge", "waiting_sequences", Group.SEQUENCES, (), "Sequences queued.", "engine")
MAX_SEQUENCES = _metric(
    "gauge",
    "max_sequences",
    Group.SEQUENCES,
    ("context",),
    "Sequences of this many tokens that the whole pool holds, without sharing.",
    "arithmetic",
)
FREE_SEQUENCES = _metric(
    "gauge",
    "free_sequences",
    Group.SEQUENCES,
    ("context",),
    "Sequences of this many tokens that fit into what is free now.",
    "arithmetic",
)
MAX_MODEL_LEN_TOKENS = _metric(
    "gauge", "max_model_len_tokens", Group.SEQUENCES, (), "Longest context served.", "engine, else config"
)
TOKENS_PER_SEQUENCE = _metric(
    "gauge",
    "tokens_per_sequence",
    Group.SEQUENCES,
    (),
    "Used tokens over running sequences; absent while nothing runs.",
    "engine",
)
WHATIF_MAX_SEQUENCES = _metric(
    "gauge",
    "whatif_max_sequences",
    Group.SEQUENCES,
    ("context", "kv_cache_dtype"),
    "max_sequences if the same pool bytes held a cache of another dtype.",
    "arithmetic",
)

PREEMPTIONS = _metric(
    "counter",
    "preemptions_total",
    Group.PRESSURE,
    (),
    "Preemption (vLLM) or retraction (SGLang) events; one request may be hit several times.",
    "engine",
)
PREEMPTED_REQUESTS = _metric(
    "counter",
    "preempted_requests_total",
    Group.PRESSURE,
    (),
    "Finished requests that were preempted at least once (vLLM from 0.32).",
    "engine",
)
PREEMPTED_REQUESTS_LOWER_BOUND = _metric(
    "gauge",
    "preempted_requests_lower_bound",
    Group.PRESSURE,
    (),
    "1 where preempted_requests_total is a lower bound: the buckets do not tell how often a request was hit.",
    "engine",
)
REQUESTS = _metric(
    "counter", "requests_total", Group.PRESSURE, ("outcome",), "Requests that ended, by outcome.", "engine"
)
EVICTED_TOKENS = _metric(
    "counter",
    "evicted_tokens_total",
    Group.PRESSURE,
    (),
    "Cached tokens evicted to make room (SGLang from 0.5.7).",
    "engine (SGLang)",
)

PREFIX_QUERY_TOKENS = _metric(
    "counter",
    "prefix_query_tokens_total",
    Group.PREFIX_CACHE,
    ("route",),
    "Prompt tokens looked up in the prefix cache.",
    "engine",
)
PREFIX_HIT_TOKENS = _metric(
    "counter",
    "prefix_hit_tokens_total",
    Group.PREFIX_CACHE,
    ("route", "cache_source"),
    "Prompt tokens found in the prefix cache.",
    "engine",
)
PREFIX_HIT_OBJECTIVE = _metric(
    "gauge",
    "prefix_hit_objective_ratio",
    Group.PREFIX_CACHE,
    ("route",),
    "Hit ratio that this route was designed for, from the settings; absent elsewhere.",
    "setting",
)
PREFIX_MATCHABLE_TOKENS = _metric(
    "gauge",
    "prefix_matchable_tokens",
    Group.PREFIX_CACHE,
    (),
    "One block: a shorter common prefix cannot hit.",
    "engine",
)

ARITHMETIC_RATIO = _metric(
    "gauge",
    "arithmetic_ratio",
    Group.TRUST,
    (),
    "Our figure over the engine's own where it reports one; 1 is agreement. Of several checks the worst.",
    "arithmetic, engine",
)
UNAVAILABLE = _metric(
    "gauge",
    "exporter_unavailable",
    Group.TRUST,
    ("signal", "reason"),
    "1 for every series that is missing, with the reason (an input's name where that input is missing).",
    "exporter",
)
INPUT_ASSUMED = _metric(
    "gauge",
    "exporter_input_assumed",
    Group.TRUST,
    ("input",),
    "1 for every input of the arithmetic that nobody told: the engine's own default was taken.",
    "exporter",
)
INPUT_CONTRADICTION = _metric(
    "gauge",
    "exporter_input_contradiction",
    Group.TRUST,
    ("input", "used", "other"),
    "1 where two sources say different things about an input; the one in `used` is taken.",
    "exporter",
)

BUILD_INFO = _own("gauge", "exporter_build_info", ("version",), "1; the exporter's version.")
FETCH_SECONDS = _own(
    "gauge", "exporter_fetch_duration_seconds", (), "Duration of the last fetch of the page."
)
FETCHES = _own("counter", "exporter_fetches_total", (), "Polls of the engine's page.")
ERRORS = _own("counter", "exporter_errors_total", ("reason",), "Failed polls by reason.")
LAST_SUCCESS = _own(
    "gauge", "exporter_last_success_timestamp_seconds", (), "When the page was last read successfully."
)
READOUT_AGE = _own("gauge", "exporter_readout_age_seconds", (), "Age of the figures served.")
POLL_INTERVAL = _own(
    "gauge",
    "exporter_poll_interval_seconds",
    (),
    "Interval in force, stretched where the engine renders slowly.",
)
DROPPED = _own(
    "counter",
    "exporter_dropped_samples_total",
    ("reason",),
    "Samples on the engine's page that were unusable.",
)
COUNTER_RESETS = _own(
    "counter", "exporter_counter_resets_total", (), "Times that the engine's counters went back (a restart)."
)
CONFIG_LOADED = _own(
    "gauge", "exporter_model_config_loaded", (), "1 where the model's config.json was found and understood."
)


def readme_table() -> str:
    """The metric table in Markdown, by group."""
    lines: list[str] = []
    for group in Group:
        lines += [
            f"**{group}**",
            "",
            "| series | type | labels beyond target, model_name, engine | from | meaning |",
        ]
        lines += ["|---|---|---|---|---|"]
        for m in CATALOGUE:
            if m.group is group:
                extra = ", ".join(f"`{label}`" for label in m.labels if label not in RANK) or "-"
                lines.append(f"| `{m.name}` | {m.kind} | {extra} | {m.source} | {m.help} |")
        lines.append("")
    return "\n".join(lines)


def _main() -> None:
    import argparse  # noqa: PLC0415  (only when run as a tool)
    from pathlib import Path  # noqa: PLC0415

    parser = argparse.ArgumentParser(description="Rewrite the generated metric table of a README.")
    parser.add_argument("--readme", type=Path, required=True)
    path: Path = parser.parse_args().readme
    path.write_text(with_table(path.read_text()))


BEGIN, END = "<!-- metrics: generated -->", "<!-- metrics: end -->"


def with_table(readme: str) -> str:
    """``readme`` with what stands between the two marks replaced by the table."""
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{readme_table()}{END}{tail}"


if __name__ == "__main__":
    _main()
