"""Every vLLM release: a page with exactly its families, and the figures that must come of it.

Values are primes or far apart, so that a figure taken from a neighbouring
family shows.
"""

from __future__ import annotations

import pytest

from exporter.engines.sample import PrefixCounts
from exporter.kvmath.known import Reason

from .pages import config_info, histogram, line, sample
from .releases import LABELS, VLLM, VLLM_RELEASES, reason, since, words

# Engine variants that a release has: "0" and "1", and whether hidden metrics are shown.
VARIANTS = [
    (release, engine, hidden)
    for release in VLLM_RELEASES
    for engine in ("0", "1")
    for hidden in (False, True)
    if engine in words(VLLM["vllm:num_requests_running"][release])
]


def in_vllm(family: str, release: str, engine: str, hidden: bool = False) -> bool:
    """Whether that release and engine show ``family``.  "x": exported whatever the engine."""
    cell = words(VLLM[family][release])
    return engine in cell or "x" in cell or (hidden and f"h{engine}" in cell)


GAUGES = {
    "vllm:kv_cache_usage_perc": 0.53,
    "vllm:gpu_cache_usage_perc": 0.53,  # where both are there they are one figure
    "vllm:num_requests_running": 7,
    "vllm:num_requests_waiting": 11,
    "vllm:num_requests_swapped": 13,
    "vllm:cpu_cache_usage_perc": 0.91,
    "vllm:cpu_prefix_cache_hit_rate": 0.92,
    "vllm:gpu_prefix_cache_hit_rate": 0.93,
    "vllm:num_preemptions_total": 17,
    "vllm:prompt_tokens_total": 100_003,
    "vllm:prompt_tokens_cached_total": 10_007,
    "vllm:prompt_tokens_recomputed_total": 19,
    "vllm:generation_tokens_total": 200_003,
    "vllm:prefix_cache_queries_total": 300_007,
    "vllm:prefix_cache_hits_total": 30_011,
    "vllm:gpu_prefix_cache_queries_total": 400_009,
    "vllm:gpu_prefix_cache_hits_total": 40_009,
    "vllm:external_prefix_cache_queries_total": 500_009,
    "vllm:external_prefix_cache_hits_total": 50_021,
    "vllm:tokens_total": 600_011,
    "vllm:engine_sleep_state": 1,
    "vllm:avg_prompt_throughput_toks_per_s": 23.5,
    "vllm:num_requests_waiting_by_reason": 29,
}


def vllm_page(release: str, engine: str, hidden: bool) -> list[str]:
    # The engine label came with V1's logger (0.8.5).
    rank = {**LABELS, "engine": "0"} if engine == "1" and since(release, 0, 8, 5) else LABELS
    lines = [
        line(family, value, **rank)
        for family, value in GAUGES.items()
        if in_vllm(family, release, engine, hidden)
    ]
    if in_vllm("vllm:cache_config_info", release, engine):
        lines.append(config_info(labels={"engine": "0"} if "engine" in rank else {}))
    lines += [
        line("vllm:request_success_total", n, finished_reason=why, **rank)
        for why, n in {"stop": 31, "length": 37, "abort": 41}.items()
    ]
    if in_vllm("vllm:prompt_tokens_cached_by_source_total", release, engine):
        lines += [
            line("vllm:prompt_tokens_cached_by_source_total", n, source=source, **rank)
            for source, n in {"device": 10_000, "host": 7}.items()
        ]
    if in_vllm("vllm:request_num_preemptions", release, engine):
        # n1 = 17 - 2 x 3 = 11, so 14 requests.
        lines += histogram({"1.0": 97, "2.0": 100, "+Inf": 100}, 17, 100, **rank)
    return lines


@pytest.mark.parametrize(("release", "engine", "hidden"), VARIANTS)
def test_vllm(release: str, engine: str, hidden: bool) -> None:
    """Usage, sequences and requests always; the rest from the release that has it."""
    got = sample(*vllm_page(release, engine, hidden), version=release)
    assert got.software == "vllm"
    assert got.model_name == "m"
    assert got.usage_ratio == 0.53
    assert got.running_sequences == 7
    assert got.waiting_sequences == 11
    assert got.requests == {"stop": 31, "length": 37, "abort": 41}
    # 0.7.3's V1 engine had no preemption counter.
    if (release, engine) == ("0.7.3", "1"):
        assert reason(got.preemptions) is Reason.NOT_REPORTED
    else:
        assert got.preemptions == 17
    if since(release, 0, 32, 0):
        assert (got.preempted_requests, got.preempted_requests_exact) == (14, True)
    else:
        assert reason(got.preempted_requests) is Reason.NOT_REPORTED
    # V0's pool has no null block, whether or not its own gauges are shown.
    assert got.null_blocks == (0 if engine == "0" else 1)
    if in_vllm("vllm:cache_config_info", release, engine):
        assert (got.block_tokens, got.num_blocks) == (16, 101)
    else:
        assert reason(got.block_tokens) is Reason.BLOCK_SIZE
    assert reason(got.capacity_tokens) is Reason.KV_CACHE_SIZE_TOKENS  # no such label on this page


def vllm_prefix(release: str, engine: str, hidden: bool) -> tuple[float, dict[str, float]] | Reason:
    """(queries, hits by source) in tokens, or why there are none; from the history of the counters."""
    if since(release, 0, 32, 0):
        return 100_003, {"device": 10_000, "host": 7}
    if since(release, 0, 18, 1):
        return 100_003, {"": 10_007}
    if engine == "0":
        return Reason.NOT_REPORTED  # V0 had hit-rate gauges only
    if since(release, 0, 9, 2):
        return 300_007, {"": 30_011}
    if release == "0.8.5":
        return 400_009 * 16, {"": 40_009 * 16}  # blocks of 16
    # 0.7.3 counts blocks too, but its V1 engine does not tell the block size.
    return Reason.BLOCK_SIZE


@pytest.mark.parametrize(("release", "engine", "hidden"), VARIANTS)
def test_vllm_prefix_in_tokens(release: str, engine: str, hidden: bool) -> None:
    """Old and new counters together count once, blocks become tokens, gauges become nothing."""
    got = sample(*vllm_page(release, engine, hidden), version=release).prefix
    expected = vllm_prefix(release, engine, hidden)
    if isinstance(expected, Reason):
        assert reason(got) is expected
    else:
        assert isinstance(got, PrefixCounts)
        assert got.query_tokens == {"": expected[0]}
        assert got.hit_tokens == {("", source): n for source, n in expected[1].items()}


@pytest.mark.parametrize(("release", "engine", "hidden"), VARIANTS)
def test_vllm_prefix_without_the_release(release: str, engine: str, hidden: bool) -> None:
    """Only the oldest counters have a unit that the release decides; without it they are withheld."""
    got = sample(*vllm_page(release, engine, hidden)).prefix
    if engine == "1" and release in ("0.7.3", "0.8.5"):
        assert reason(got) is Reason.ENGINE_VERSION
    else:
        told = sample(*vllm_page(release, engine, hidden), version=release).prefix
        assert got == told


def test_blocks_or_tokens_between_two_releases() -> None:
    """Between 0.8.5 and 0.9.2 nobody established the unit; 0.7.3 with a block size is in blocks."""
    lines = [
        line("vllm:gpu_cache_usage_perc", 0.5, **LABELS),
        line("vllm:gpu_prefix_cache_queries_total", 50, **LABELS),
        line("vllm:gpu_prefix_cache_hits_total", 20, **LABELS),
        config_info(),
    ]
    assert reason(sample(*lines, version="0.9.0").prefix) is Reason.ENGINE_VERSION
    assert reason(sample(*lines, version="0.9.1.dev3+gabc").prefix) is Reason.ENGINE_VERSION
    in_blocks = sample(*lines, version="0.7.3").prefix
    assert in_blocks == PrefixCounts({"": 800}, {("", ""): 320})
    in_tokens = sample(*lines, version="0.9.2").prefix
    assert in_tokens == PrefixCounts({"": 50}, {("", ""): 20})


@pytest.mark.parametrize("total", ["", "_total"])
@pytest.mark.parametrize(
    "prefix", ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_", ""]
)
@pytest.mark.parametrize("usage", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_vllm_spellings(prefix: str, total: str, usage: str) -> None:
    """Colons mangled, Ray's and KServe's additions, NIM's bare names; counters with and without _total."""
    got = sample(
        line(f"{prefix}{usage}", 0.25, **LABELS),
        line(f"{prefix}num_requests_running", 3, **LABELS),
        line(f"{prefix}num_preemptions{total}", 5, **LABELS),
        line(f"{prefix}request_success{total}", 8, finished_reason="stop", **LABELS),
        config_info(prefix),
    )
    assert (got.software, got.model_name, got.engine) == ("vllm", "m", "")
    assert got.usage_ratio == 0.25
    assert got.running_sequences == 3
    assert got.preemptions == 5
    assert got.requests == {"stop": 8}
    assert got.num_blocks == 101


def test_nim_counts_finished_requests_under_another_name() -> None:
    """NIM's request_finish_total where vLLM has request_success_total."""
    got = sample(
        line("gpu_cache_usage_perc", 0.25, **LABELS),
        line("request_finish_total", 8, finished_reason="stop", **LABELS),
    )
    assert got.requests == {"stop": 8}
