"""Windows and floors on /metrics: from pages to series."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from prometheus_client.samples import Sample

from exporter.collect import families
from exporter.demo.recording import load
from exporter.derive.inputs import Model
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.model import read_model
from exporter.requests.record import RequestRecord, Source
from exporter.requests.sink import RecordSink
from exporter.settings import TargetSettings
from exporter.target import TargetState

CONTEXTS = (64, 256, 1024)
RECORDINGS = Path(__file__).parents[2] / "recordings"


def state(gpu_bandwidth: str | None = None) -> TargetState:
    settings = TargetSettings(url="http://127.0.0.1:1", name="t", gpu_bandwidth=gpu_bandwidth)
    return TargetState(settings, CONTEXTS, 2.0)


def poll(one: TargetState, *pages: str) -> None:
    for at, page in enumerate(pages):
        one.accept(one.read(page), float(at), time.time())


def samples(one: TargetState, name: str) -> list[Sample]:
    return [s for family in families([one]) for s in family.samples if s.name == name]


def test_the_recorded_run() -> None:
    """Every gap after the first page is in some tier or said to be in none; +Inf is a tier of its own."""
    one = state()
    frames = load("vllm").frames
    poll(one, *(frame.page_text for frame in frames))
    counts = {s.labels["context"]: s.value for s in samples(one, "kvcache_itl_window_seconds_count")}
    assert set(counts) == {"64", "256", "1024", "+Inf"}
    (nowhere,) = samples(one, "kvcache_itl_window_unattributed_total")
    # 51,083 gaps on the last page, 4,078 of them already on the first.
    first, last = (_gaps(frames[n].page_text) for n in (0, -1))
    assert sum(counts.values()) + nowhere.value == last - first == 51_083 - 4_078
    buckets = [s for s in samples(one, "kvcache_itl_window_seconds_bucket") if s.labels["context"] == "+Inf"]
    # The engine's own bounds: 0.01, 0.025, 0.05 and so on, twenty with +Inf.
    assert [s.labels["le"] for s in buckets][:3] == ["0.01", "0.025", "0.05"]
    assert (len(buckets), buckets[-1].labels["le"], buckets[-1].value) == (20, "+Inf", counts["+Inf"])


def _gaps(page: str) -> float:
    lines = page.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:inter_token_latency_seconds_count{"))


def test_finished_requests_tell_more() -> None:
    """Two figures of one thing would be added up by somebody: with records the window is gone."""
    one = state()
    poll(one, *(frame.page_text for frame in load("vllm").frames[:3]))
    one.records = RecordSink("t", CONTEXTS)
    assert samples(one, "kvcache_itl_window_seconds_count")
    one.records.accept(RequestRecord("r", 10, 10, 1.0, Source.TRACE, decode_seconds=0.1, prefill_seconds=0.1))
    assert not samples(one, "kvcache_itl_window_seconds_count")


def test_several_ranks_behind_one_histogram() -> None:
    """SGLang's histogram has no rank: the whole server's gaps go to the mean of its ranks."""
    head = 'model_name="m",engine_type="unified"'

    def page(tokens: tuple[int, int], gaps: int) -> str:
        lines = []
        for rank, used in enumerate(tokens):
            labels = f'{{{head},tp_rank="0",pp_rank="0",dp_rank="{rank}"}}'
            lines += [
                f"sglang:max_total_num_tokens{labels} 3072",
                f"sglang:kv_used_tokens{labels} {used}",
                f"sglang:kv_available_tokens{labels} {3072 - used}",
                f"sglang:kv_evictable_tokens{labels} 0",
                f"sglang:num_running_reqs{labels} 1",
            ]
        lines += [
            f'sglang:inter_token_latency_seconds_bucket{{{head},le="0.01"}} {gaps}',
            f'sglang:inter_token_latency_seconds_bucket{{{head},le="+Inf"}} {gaps}',
            f"sglang:inter_token_latency_seconds_sum{{{head}}} {gaps * 0.005}",
        ]
        return "\n".join(lines) + "\n"

    one = state()
    # (100 + 300) / 2 = 200 tokens a sequence at both polls: the tier of 256.
    poll(one, page((100, 300), 10), page((100, 300), 25))
    counts = {s.labels["context"]: s.value for s in samples(one, "kvcache_itl_window_seconds_count")}
    assert counts == {"64": 0, "256": 15, "1024": 0, "+Inf": 0}


def test_an_engine_without_the_histogram_is_said_to_have_none() -> None:
    """Absent, with a reason; not an empty histogram."""
    one = state()
    page = (RECORDINGS / "vllm-0.32.0-llama-preemptions" / "loaded.prom").read_text()
    poll(one, "\n".join(line for line in page.splitlines() if "inter_token" not in line) + "\n")
    assert not samples(one, "kvcache_itl_window_seconds_count")
    assert [
        s.labels["reason"]
        for s in samples(one, "kvcache_exporter_unavailable")
        if s.labels["signal"] == "kvcache_itl_window_seconds"
    ] == ["not_reported"]


@pytest.mark.parametrize("gpu_bandwidth", [None, "1e11"])
def test_the_floor_needs_a_bandwidth(gpu_bandwidth: str | None) -> None:
    """Nobody asked: silence. Asked for, but no weights are known: the reason."""
    one = state(gpu_bandwidth)
    poll(one, (RECORDINGS / "vllm-0.32.0-llama-preemptions" / "loaded.prom").read_text())
    told = {
        s.labels["signal"]: s.labels["reason"]
        for s in samples(one, "kvcache_exporter_unavailable")
        if "floor" in s.labels["signal"]
    }
    reasons = dict.fromkeys(("kvcache_decode_floor_seconds", "kvcache_itl_floor_ratio"), "model_weights")
    assert told == (reasons if gpu_bandwidth else {})


def test_the_floor_and_the_ratio() -> None:
    """12,000,000 bytes of weights and the live blocks over 1 GB/s; the interval's mean gap over that."""
    one = state("1e9")
    config = RECORDINGS / "vllm-0.32.0-llama-preemptions" / "config.json"
    one.model = Model(read_model(json.loads(config.read_text())), "path", str(config), 12_000_000)
    frames = load("vllm").frames[4:6]
    poll(one, *(frame.page_text for frame in frames))
    (used,) = samples(one, "kvcache_used_bytes")
    assert used.value > 0
    (floor,) = samples(one, "kvcache_decode_floor_seconds")
    assert floor.value == pytest.approx((12_000_000 + used.value) / 1e9)
    seconds = [_seconds(frame.page_text) for frame in frames]
    gaps = [_gaps(frame.page_text) for frame in frames]
    (ratio,) = samples(one, "kvcache_itl_floor_ratio")
    assert ratio.value == pytest.approx((seconds[1] - seconds[0]) / (gaps[1] - gaps[0]) / floor.value)


def _seconds(page: str) -> float:
    lines = page.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:inter_token_latency_seconds_sum{"))


def test_without_a_config_the_floor_has_a_reason() -> None:
    """Used bytes come from the config; what is missing is named."""
    one = state("1e9")
    one.model = Model(Unavailable(Reason.MODEL_CONFIG), weights_bytes=1)
    poll(one, (RECORDINGS / "vllm-0.32.0-llama-preemptions" / "loaded.prom").read_text())
    (said,) = [
        s.labels["reason"]
        for s in samples(one, "kvcache_exporter_unavailable")
        if s.labels["signal"] == "kvcache_decode_floor_seconds"
    ]
    assert said == "model_config"
