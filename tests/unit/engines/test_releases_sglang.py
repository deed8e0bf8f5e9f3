"""Every SGLang release: a page with exactly its families, and the figures that must come of it."""

from __future__ import annotations

import pytest

from exporter.engines.info import read_documents
from exporter.engines.sample import EngineSample, PrefixCounts
from exporter.kvmath.known import Reason, known

from .pages import line, sample
from .releases import LABELS, SGLANG, SGLANG_RELEASES, reason, since


@pytest.mark.parametrize("total", ["", "_total"])
@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_sglang_spellings(prefix: str, total: str) -> None:
    """The same for SGLang."""
    got = sample(
        line(f"{prefix}full_token_usage", 0.25, **LABELS),
        line(f"{prefix}num_retracted_requests{total}", 5, **LABELS),
        line(f"{prefix}num_requests{total}", 8, **LABELS),
        line(f"{prefix}prompt_tokens{total}", 100, **LABELS),
        line(f"{prefix}cached_tokens{total}", 40, **LABELS),
    )
    assert got.software == "sglang"
    assert got.usage_ratio == 0.25
    assert got.preemptions == 5
    assert got.requests == {"finished": 8}
    assert got.prefix == PrefixCounts({"": 100}, {("", ""): 40})


SGLANG_GAUGES = {
    "sglang:full_token_usage": 0.4,
    "sglang:token_usage": 0.41,  # rounded, and of the fullest pool
    "sglang:swa_token_usage": 0,
    "sglang:mamba_usage": 0,
    "sglang:kv_used_tokens": 4_000,
    "sglang:kv_available_tokens": 1_000,
    "sglang:kv_evictable_tokens": 5_000,
    "sglang:num_used_tokens": 4_100,
    "sglang:max_total_num_tokens": 10_000,
    "sglang:mamba_used_tokens": 0,
    "sglang:mamba_available_tokens": 0,
    "sglang:mamba_evictable_tokens": 0,
    "sglang:page_size": 4,
    "sglang:context_len": 2_048,
    "sglang:kv_cache_memory_usage_gb": 0.25,
    "sglang:num_running_reqs": 7,
    "sglang:num_queue_reqs": 11,
    "sglang:num_requests_total": 31,
    "sglang:prompt_tokens_total": 100_003,
    "sglang:cache_hit_rate": 0.93,
    "sglang:generation_tokens_total": 200_003,
    "sglang:utilization": 0,
    "sglang:num_retracted_reqs": 13,
    "sglang:total_retracted_reqs": 19,
    "sglang:num_aborted_requests_total": 3,
    "sglang:spec_num_draft_tokens": 0,
}
SGLANG_EVENTS = {
    "sglang:num_retracted_requests_total": 17,
    "sglang:cached_tokens_total": 10_007,
    "sglang:evicted_tokens_total": 23,
}


def sglang_page(release: str, *, events: bool) -> list[str]:
    lines = [
        line(family, value, **LABELS) for family, value in SGLANG_GAUGES.items() if SGLANG[family][release]
    ]
    if SGLANG["sglang:prefill_effective_tokens_total"][release]:
        modes = {"input": 300_000, "device_hit": 30_000, "host_hit": 11} if events else {"input": 9}
        lines += [
            line("sglang:prefill_effective_tokens_total", n, mode=mode, **LABELS) for mode, n in modes.items()
        ]
    for family, value in SGLANG_EVENTS.items():
        if events and SGLANG[family][release]:
            source = (
                {"cache_source": "device"}
                if family == "sglang:cached_tokens_total" and since(release, 0, 5, 9)
                else {}
            )
            lines.append(line(family, value, **source, **LABELS))
    return lines


def sglang_sample(release: str, *, events: bool = True) -> EngineSample:
    return sample(*sglang_page(release, events=events), version=release)


@pytest.mark.parametrize("release", SGLANG_RELEASES)
def test_sglang(release: str) -> None:
    """Usage, sequences and requests always; the rest from the release that has it."""
    got = sglang_sample(release)
    assert got.software == "sglang"
    # The best gauge there is: unrounded from 0.5.10, used over capacity from 0.5.7, else rounded.
    expected_usage = 0.4 if since(release, 0, 5, 10) else 0.41
    assert got.usage_ratio == expected_usage
    assert got.used_tokens == (4_000 if since(release, 0, 5, 12) else 4_100)
    assert got.running_sequences == 7
    assert got.waiting_sequences == 11
    assert got.requests == {"finished": 31}
    assert reason(got.preempted_requests) is Reason.NOT_REPORTED
    told: dict[tuple[int, ...], list[tuple[object, int]]] = {
        (0, 5, 7): [(got.capacity_tokens, 10_000), (got.preemptions, 17), (got.evicted_tokens, 23)],
        (0, 5, 12): [(got.cached_tokens, 5_000), (got.block_tokens, 4), (got.max_model_len, 2_048)],
        (0, 5, 18): [(got.device_pool_bytes, 2**28)],
    }
    for first, figures in told.items():
        for figure, value in figures:
            if since(release, *first):
                assert figure == value
            else:
                assert reason(figure) is Reason.NOT_REPORTED


@pytest.mark.parametrize("release", SGLANG_RELEASES)
def test_sglang_prefix(release: str) -> None:
    """What prefill looked up from 0.5.18; finished requests' tokens before; never the hit rate gauge."""
    got = sglang_sample(release).prefix
    assert isinstance(got, PrefixCounts)
    if since(release, 0, 5, 18):
        assert got.query_tokens == {"": 330_011}  # computed and found
        assert got.hit_tokens == {("", "device"): 30_000, ("", "host"): 11}
    else:
        source = "device" if since(release, 0, 5, 9) else ""
        assert got.query_tokens == {"": 100_003}
        assert got.hit_tokens == {("", source): 10_007}


@pytest.mark.parametrize("release", SGLANG_RELEASES)
def test_sglang_counters_before_their_first_event(release: str) -> None:
    """Absent means zero from the release that has the counter, and unknown before."""
    got = sglang_sample(release, events=False)
    for figure in (got.preemptions, got.evicted_tokens):
        if since(release, 0, 5, 7):
            assert figure == 0
        else:
            assert reason(figure) is Reason.NOT_REPORTED
    assert isinstance(got.prefix, PrefixCounts)
    # The cached-token counter is in every release of the table: nothing was found yet. Its series
    # must keep its labels when the first hit comes, or it would start again from nothing.
    if since(release, 0, 5, 18):
        assert got.prefix == PrefixCounts({"": 9}, {})
    else:
        assert got.prefix.hit_tokens == {("", "device" if since(release, 0, 5, 9) else ""): 0}


def test_the_families_date_the_page() -> None:
    """Without a told release a family on the page proves the release, and so the zero."""
    got = sample(line("sglang:max_total_num_tokens", 10_000, **LABELS))
    assert got.preemptions == 0
    assert got.evicted_tokens == 0
    old = sample(line("sglang:token_usage", 0.41, **LABELS))
    assert reason(old.preemptions) is Reason.NOT_REPORTED


@pytest.mark.parametrize("release", [r for r in SGLANG_RELEASES if not since(r, 0, 5, 7)])
def test_old_sglang_tells_its_capacity_at_the_info_endpoint(release: str) -> None:
    """Below 0.5.7 only /get_server_info has max_total_num_tokens."""
    assert not known(sglang_sample(release).capacity_tokens)
    facts = read_documents(
        [{"model_path": "/m", "tp_size": 1, "max_total_num_tokens": 10_000, "version": release}], "sglang"
    )
    assert facts.max_total_num_tokens == 10_000
