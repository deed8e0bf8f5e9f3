"""Engine flags that make an engine say more, and the release from which each does.

``since`` is the oldest release in which the flag, and what it gives, was found
(vLLM 0.32.0 and SGLang's wheels 0.4.6 to 0.5.23; a flag may be a little older:
an advice that comes too late is better than one that stops the engine).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """One flag: its name, how it is written, and what else it takes."""

    software: str
    option: str
    written: str
    since: Release
    environment: str = ""
    own_metrics: tuple[str, ...] = ()
    """What it adds to the engine's own page, where that is the point."""


_OTLP = "--otlp-traces-endpoint http://127.0.0.1:9844/v1/traces"
# HTTP, because the default is gRPC; always on, because a gateway's traceparent may switch spans off.
_OTEL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf OTEL_TRACES_SAMPLER=always_on"

VLLM_TRACES = Switch("vllm", "--otlp-traces-endpoint", _OTLP, (0, 11, 2), _OTEL)
VLLM_BUCKETS = Switch(
    "vllm",
    "--custom-histogram-buckets",
    '--custom-histogram-buckets \'{"inter_token_latency": '
    "[0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 5]}'",
    (0, 32, 0),
)
VLLM_CACHE_METRICS = Switch(
    "vllm",
    "--kv-cache-metrics",
    "--kv-cache-metrics",
    (0, 13, 0),
    own_metrics=(
        "vllm:kv_block_lifetime_seconds",
        "vllm:kv_block_idle_before_evict_seconds",
        "vllm:kv_block_reuse_gap_seconds",
    ),
)
# /server_info?config_format=json: parallelism, cache dtype and budget in the engine's own words.
VLLM_DEVELOPMENT = Switch("vllm", "VLLM_SERVER_DEV_MODE", "", (0, 32, 0), "VLLM_SERVER_DEV_MODE=1")

SGLANG_METRICS = Switch("sglang", "--enable-metrics", "--enable-metrics", (0, 4, 6))
SGLANG_TRACES = Switch("sglang", "--enable-trace", f"--enable-trace {_OTLP}", (0, 5, 9), _OTEL)
SGLANG_REQUEST_LOG = Switch(
    "sglang",
    "--export-metrics-to-file",
    "--export-metrics-to-file --export-metrics-to-file-dir DIR",
    (0, 5, 10),
)
SGLANG_ROUTES = Switch(
    "sglang",
    "--tokenizer-metrics-allowed-custom-labels",
    "--tokenizer-metrics-custom-labels-header x-custom-labels "
    "--tokenizer-metrics-allowed-custom-labels route",
    (0, 5, 3),
)
# Spans of every decode step are sent where this is not said (0.5.12 and later know it).
SGLANG_TRACE_LEVEL: tuple[Release, str] = ((0, 5, 12), "SGLANG_TRACE_LEVEL=1")

SWITCHES = (
    *(VLLM_TRACES, VLLM_BUCKETS, VLLM_CACHE_METRICS, VLLM_DEVELOPMENT),
    *(SGLANG_METRICS, SGLANG_TRACES, SGLANG_REQUEST_LOG, SGLANG_ROUTES),
)
OPTIONS: Mapping[str, tuple[str, ...]] = {
    software: tuple(s.option for s in SWITCHES if s.software == software and s.option.startswith("--"))
    for software in ("vllm", "sglang")
}


def given(software: str, arguments: Iterable[str]) -> frozenset[str]:
    """Which of the options are among the words of a command line; their values are not kept."""
    words = {word.partition("=")[0] for word in arguments}
    return frozenset(words.intersection(OPTIONS.get(software, ())))


def in_sglang_server_info(document: Mapping[str, object]) -> frozenset[str]:
    """The same out of SGLang's /server_info, which repeats nearly every argument."""
    fields = {option: option.removeprefix("--").replace("-", "_") for option in OPTIONS["sglang"]}
    return frozenset(option for option, field in fields.items() if document.get(field))
