"""vLLM's pool labels and the preemption histogram."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from exporter.kvmath.known import Reason, Unavailable

from .pages import config_info, histogram, line, sample, samples

USAGE = line("vllm:kv_cache_usage_perc", 0.5, model_name="m", engine="0")


def preempted(buckets: Mapping[str, float], total: float, count: float) -> tuple[float | Reason, bool]:
    got = sample(USAGE, *histogram(buckets, total, count, model_name="m", engine="0"))
    value = got.preempted_requests
    return (value.reason if isinstance(value, Unavailable) else value), got.preempted_requests_exact


FULL = ("1.0", "2.0", "3.0", "4.0", "5.0", "10.0", "20.0", "+Inf")


@pytest.mark.parametrize(
    ("counts", "total", "expected", "exact"),
    [
        # Nobody: 10 requests, none preempted.
        ((10,) * 8, 0, 0, True),
        # Once each: the bucket of 1 also holds the zeros, only the sum tells.
        ((10,) * 8, 4, 4, True),
        # n2 = 2, n3 = 1, n4 = 1, n5 = 1: n1 = 20 - 4 - 3 - 4 - 5 = 4; 4 + 5 = 9
        ((5, 7, 8, 9, 10, 10, 10, 10), 20, 9, True),
        # One between 6 and 10 (bucket 10), 9 of the sum: at most 10 of it, so n1 >= 0: at least 1.
        ((9, 9, 9, 9, 9, 10, 10, 10), 9, 1, False),
        # The same with a sum of 14: at least 14 - 10 = 4 more were hit once.
        ((9, 9, 9, 9, 9, 10, 10, 10), 14, 5, False),
        # Above the last bucket there is no bound, so nothing is left to be sure of but that one.
        ((9, 9, 9, 9, 9, 9, 9, 10), 40, 1, False),
        # No requests yet.
        ((0,) * 8, 0, 0, True),
    ],
)
def test_preempted_requests(counts: tuple[float, ...], total: float, expected: float, exact: bool) -> None:
    """Hand sums beside each case."""
    assert preempted(dict(zip(FULL, counts, strict=True)), total, counts[-1]) == (expected, exact)


@pytest.mark.parametrize(
    ("buckets", "total", "count"),
    [
        ({"1.0": 10, "2.0": 9, "+Inf": 10}, 3, 10),  # buckets that shrink
        ({"1.0": 10, "2.0": 12, "+Inf": 12}, 3, 11),  # fewer requests than the last bucket
        ({"2.0": 10, "+Inf": 10}, 3, 10),  # no bucket of 1: n1 and n2 cannot be told apart
        ({"1.0": 10, "2.0": 12, "+Inf": 12}, 3, 12),  # two twice is four, the sum says three
        ({"one": 10, "+Inf": 10}, 3, 10),
        ({"+Inf": 10}, 3, 10),
    ],
)
def test_histograms_that_do_not_add_up(buckets: Mapping[str, float], total: float, count: float) -> None:
    """Two scrapes mixed, or other buckets than vLLM's: no count rather than a wrong one."""
    assert preempted(buckets, total, count)[0] is Reason.OUT_OF_RANGE


def test_no_histogram() -> None:
    """Before 0.32: events only, never passed off as requests."""
    got = sample(USAGE, line("vllm:num_preemptions_total", 5, model_name="m", engine="0"))
    assert got.preemptions == 5
    assert isinstance(got.preempted_requests, Unavailable)


def blocks(*labels: Mapping[str, str]) -> list[int | Reason]:
    found = samples(
        *(config_info(labels=one, engine=str(n)) for n, one in enumerate(labels)),
        *(line("vllm:kv_cache_usage_perc", 0.5, model_name="m", engine=str(n)) for n in range(len(labels))),
    )
    return [s.num_blocks.reason if isinstance(s.num_blocks, Unavailable) else s.num_blocks for s in found]


def test_one_engine_keeps_its_blocks() -> None:
    """A single series is nobody's sum."""
    assert blocks({"num_gpu_blocks": "101"}) == [101]


def test_the_sum_of_equal_engines_is_divided() -> None:
    """One frontend repeats the sum on every series: 300 over 3 engines are 100 each."""
    assert blocks(*[{"num_gpu_blocks": "300"}] * 3) == [100, 100, 100]


def test_unequal_engines_by_their_own_sizes() -> None:
    """kv_cache_size_tokens is each engine's own: 1,600 and 3,200 tokens of 16 are 100 + 200 = 300 blocks."""
    assert blocks(
        {"num_gpu_blocks": "300", "kv_cache_size_tokens": "1600"},
        {"num_gpu_blocks": "300", "kv_cache_size_tokens": "3200"},
    ) == [100, 200]


def test_engines_that_tell_their_own() -> None:
    """Different numbers on the series cannot be one sum."""
    assert blocks({"num_gpu_blocks": "100"}, {"num_gpu_blocks": "200"}) == [100, 200]


def test_a_sum_that_does_not_divide() -> None:
    """301 blocks over two engines: unequal, and nothing tells how."""
    assert blocks(*[{"num_gpu_blocks": "301"}] * 2) == [Reason.CONTRADICTION] * 2


@pytest.mark.parametrize("text", ["None", "", "-5", "0", "1e3", "12.5", "9" * 19])
def test_labels_that_are_no_count(text: str) -> None:
    """Unset, negative, fractional or endless: missing, never zero."""
    assert blocks({"num_gpu_blocks": text}) == [Reason.NUM_GPU_BLOCKS]


def test_an_overridden_count_has_no_budget() -> None:
    """num_gpu_blocks_override: the byte budget then says nothing about the blocks."""
    given = {"kv_cache_memory_bytes": "1000000"}
    assert sample(USAGE, config_info(labels=given, engine="0")).device_pool_bytes == 1_000_000
    assert isinstance(
        sample(
            USAGE, config_info(labels={**given, "num_gpu_blocks_override": "7"}, engine="0")
        ).device_pool_bytes,
        Unavailable,
    )


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "0", "None", "x", "1e300"])
def test_a_concurrency_that_is_none(text: str) -> None:
    """float() accepts nan and inf; a pool does not."""
    labels = {"kv_cache_size_tokens": "1600", "kv_cache_max_concurrency": text}
    got = sample(USAGE, config_info(labels=labels, engine="0"))
    assert isinstance(got.max_concurrency, Unavailable)
    assert isinstance(got.max_model_len, Unavailable)
    assert got.capacity_tokens == 1_600


def test_the_longest_context_from_two_labels() -> None:
    """9,600 tokens at a concurrency of 2.34375 are contexts of 4,096: the run was started with that."""
    labels = {"kv_cache_size_tokens": "9600", "kv_cache_max_concurrency": "2.34375"}
    assert sample(USAGE, config_info(labels=labels, engine="0")).max_model_len == 4_096


def test_speculative_decoding_shows() -> None:
    """The draft counter exists only with it; without it the page does not tell."""
    assert sample(USAGE).speculative is None
    drafts = line("vllm:spec_decode_num_drafts_total", 0, model_name="m", engine="0")
    assert sample(USAGE, drafts).speculative is True
