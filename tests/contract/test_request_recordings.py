"""Recorded requests of both engines through the receiver, up to /metrics, against independent figures.

The figures per tier were worked out from the recordings by others than this program: counts and mean gaps of
the spans (`time_in_model_decode / (completion_tokens - 1)`) and of SGLang's log (`1 / decode_throughput`).
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from exporter import web
from exporter.fleet import Watch
from exporter.requests.sglang_log import RequestLog
from exporter.settings import ServeSettings, TargetSettings

RECORDINGS = Path(__file__).parents[1] / "recordings"
VLLM = RECORDINGS / "vllm-0.32.0-llama-preemptions"
SGLANG_SPANS = RECORDINGS / "sglang-0.5.23-otlp-request-spans.jsonl"
SGLANG_LOG = RECORDINGS / "sglang-0.5.23-llama-retractions/request-log.jsonl"
NOW = 1_795_990_400.0  # minutes after the recordings


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def vllm_export(spans: Iterable[dict[str, Any]]) -> bytes:
    """Recorded vLLM spans as the engine's exporter sends them."""
    export = ExportTraceServiceRequest()
    scope = export.resource_spans.add().scope_spans.add()
    for told in spans:
        span = scope.spans.add(
            name=told["name"],
            span_id=bytes.fromhex(told["span_id"]),
            trace_id=bytes.fromhex(told["trace_id"]),
            start_time_unix_nano=told["start"],
            end_time_unix_nano=told["end"],
        )
        for key, value in told["attributes"].items():
            kind = {int: "int_value", float: "double_value", str: "string_value"}[type(value)]
            setattr(span.attributes.add(key=key).value, kind, value)
    return export.SerializeToString()


class Sidecar:
    """The whole application, without an engine behind it."""

    def __init__(self, *contexts: int, **more: Any) -> None:
        settings = ServeSettings(
            target=[TargetSettings(url="http://127.0.0.1:8000", name="t")], context=list(contexts), **more
        )
        self.watch = Watch(settings)
        self._app = web.app(self.watch, now=lambda: NOW)

    def post(self, body: bytes) -> int:
        return self._run("POST", "/v1/traces", body).status_code

    def scrape(self) -> list[Sample]:
        page = self._run("GET", "/metrics", b"").text
        return [s for family in text_string_to_metric_families(page) for s in family.samples]

    def _run(self, method: str, path: str, body: bytes) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                headers = {"Content-Type": "application/x-protobuf"}
                return await client.request(method, path, content=body, headers=headers)

        return asyncio.run(send())


def by_tier(samples: Sequence[Sample], name: str, **labels: str) -> dict[str, float]:
    """context -> value, of the series with these labels."""
    return {
        s.labels["context"]: s.value
        for s in samples
        if s.name == name and all(s.labels.get(key) == value for key, value in labels.items())
    }


def mean_ms(samples: Sequence[Sample], name: str, source: str) -> dict[str, float]:
    sums, counts = (by_tier(samples, f"{name}_{part}", source=source) for part in ("sum", "count"))
    return {tier: round(sums[tier] / counts[tier] * 1000, 2) for tier in sums}


def test_vllm_trace_by_tier() -> None:
    """The run with preemptions: 286 requests."""
    sidecar = Sidecar(64, 256, 1024)
    assert sidecar.post(vllm_export(lines(VLLM / "otlp-request-spans.jsonl"))) == 200
    samples = sidecar.scrape()
    counts = by_tier(samples, "kvcache_itl_seconds_count", source="trace")
    assert counts == {"64": 20, "256": 39, "1024": 128, "+Inf": 99}
    assert by_tier(samples, "kvcache_context_requests_total") == counts
    assert mean_ms(samples, "kvcache_itl_seconds", "trace") == {
        "64": 10.15, "256": 7.45, "1024": 6.33, "+Inf": 6.08,
    }  # fmt: skip
    # The spans say nothing of preemptions and cached tokens: no series, not zeros.
    assert by_tier(samples, "kvcache_context_preempted_requests_total") == {}
    assert by_tier(samples, "kvcache_context_cached_tokens_total") == {}


def test_vllm_trace_is_what_the_client_saw() -> None:
    """The client's own log: the same requests tier by tier, and no latency that it did not see at least."""
    client = lines(VLLM / "client.jsonl")
    sidecar = Sidecar(64, 256, 1024)
    sidecar.post(vllm_export(lines(VLLM / "otlp-request-spans.jsonl")))
    samples = sidecar.scrape()
    requests: Counter[str] = Counter()
    ttft: Counter[str] = Counter()
    prompt: Counter[str] = Counter()
    for one in client:
        tier = ("64", "256", "1024", "+Inf")[bisect_left((64, 256, 1024), one["usage"]["total_tokens"])]
        requests[tier] += 1
        ttft[tier] += one["ttft"]
        prompt[tier] += one["usage"]["prompt_tokens"]
    assert by_tier(samples, "kvcache_ttft_seconds_count", source="trace") == requests
    assert by_tier(samples, "kvcache_context_prompt_tokens_total") == prompt
    # The engine's clock starts when the request has arrived and stops before the answer leaves.
    engine = by_tier(samples, "kvcache_ttft_seconds_sum", source="trace")
    for tier, seen in ttft.items():
        assert 0.85 * seen < engine[tier] < seen, tier


def test_vllm_held_token_seconds_are_the_area_under_the_cache() -> None:
    """Summed step by step here: a request holds its prompt through prefill, then one token more per gap."""
    spans = lines(VLLM / "otlp-request-spans.jsonl")
    area: Counter[str] = Counter()
    for span in spans:
        said = span["attributes"]
        prompt, output = said["gen_ai.usage.prompt_tokens"], said["gen_ai.usage.completion_tokens"]
        held = prompt * said["gen_ai.latency.time_in_model_prefill"]
        gap = said["gen_ai.latency.time_in_model_decode"] / (output - 1)
        for step in range(output - 1):
            held += (prompt + step + 0.5) * gap  # grows by one token within the step
        tier = ("64", "256", "1024", "+Inf")[bisect_left((64, 256, 1024), prompt + output)]
        area[tier] += held
    sidecar = Sidecar(64, 256, 1024)
    sidecar.post(vllm_export(spans))
    exported = by_tier(sidecar.scrape(), "kvcache_held_token_seconds_total")
    assert exported == pytest.approx(dict(area))


def test_a_run_sent_twice_in_batches_counts_once() -> None:
    """An exporter repeats batches; the sums must not move."""
    spans = lines(VLLM / "otlp-request-spans.jsonl")
    sidecar = Sidecar(64, 256, 1024)
    for start in (*range(0, 286, 50), *range(0, 286, 30)):
        sidecar.post(vllm_export(spans[start : start + 50]))
    samples = sidecar.scrape()
    assert sum(by_tier(samples, "kvcache_context_requests_total").values()) == 286
    (received,) = [s.value for s in samples if s.name == "kvcache_exporter_records_received_total"]
    (duplicate,) = [s.value for s in samples if s.name == "kvcache_exporter_records_duplicate_total"]
    assert received - duplicate == 286


def test_sglang_trace_spans_tell_cached_tokens() -> None:
    """Counted from the recorded attributes themselves: requests, and prompt tokens that were cached."""
    told = lines(SGLANG_SPANS)
    export = ExportTraceServiceRequest()
    spans = export.resource_spans.add().scope_spans.add().spans
    requests: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    for one in told:
        one.pop("resource")
        spans.append(json_format.ParseDict(one, Span()))
        said = {a["key"]: next(iter(a["value"].values())) for a in one["attributes"]}
        context = int(said["gen_ai.usage.prompt_tokens"]) + int(said["gen_ai.usage.completion_tokens"])
        tier = ("128", "512", "1024", "+Inf")[bisect_left((128, 512, 1024), context)]
        requests[tier] += 1
        cached[tier] += int(said["gen_ai.usage.cached_tokens"])
    sidecar = Sidecar(128, 512, 1024)
    assert sidecar.post(export.SerializeToString()) == 200
    samples = sidecar.scrape()
    assert by_tier(samples, "kvcache_context_requests_total") == {
        **dict.fromkeys(("128", "512", "1024", "+Inf"), 0),
        **requests,
    }
    assert sum(by_tier(samples, "kvcache_context_cached_tokens_total").values()) == cached.total() > 0


def test_sglang_log_by_tier(tmp_path: Path) -> None:
    """The run with retractions: 241 requests, mean gaps equal to the log's own decode throughput."""
    sidecar = Sidecar(128, 512, 1024, route=["short", "shared"])
    sink = sidecar.watch.states[0].records
    assert sink is not None
    log = RequestLog(tmp_path, sink, route=True, clock=lambda: NOW)
    log.poll()  # nothing there yet; files that appear later are read from their start
    (tmp_path / "sglang-request-metrics-20261130_21.log").write_bytes(SGLANG_LOG.read_bytes())
    log.poll()
    samples = sidecar.scrape()
    total: dict[str, Counter[str]] = {}
    for name in (
        "kvcache_itl_seconds_count", "kvcache_itl_seconds_sum", "kvcache_context_preempted_requests_total",
    ):  # fmt: skip
        total[name] = Counter()
        for s in samples:
            if s.name == name:
                total[name][s.labels["context"]] += s.value  # type: ignore[assignment]
    count, seconds = total["kvcache_itl_seconds_count"], total["kvcache_itl_seconds_sum"]
    assert count == {"128": 60, "512": 112, "1024": 55, "+Inf": 14}
    assert {tier: round(seconds[tier] / count[tier] * 1000, 2) for tier in count} == {
        "128": 17.30, "512": 16.54, "1024": 15.55, "+Inf": 25.46,
    }  # fmt: skip
    told = lines(SGLANG_LOG)
    retracted = sum(one["num_retractions"] > 0 for one in told)
    assert total["kvcache_context_preempted_requests_total"].total() == retracted > 0
    # Routes from the log's custom labels, counted here by hand; what is not listed is "other".
    routes: Counter[str] = Counter()
    for one in told:
        named = (json.loads(one["request_parameters"]).get("custom_labels") or {}).get("route", "")
        routes[named if named in ("short", "shared", "") else "other"] += 1
    exported: Counter[str] = Counter()
    for s in samples:
        if s.name == "kvcache_context_requests_total":
            exported[s.labels.get("route", "")] += int(s.value)
    assert exported == routes
    assert len(routes) > 2
