"""Window mode: whose gaps go where, resets, and how wrong it is on a real run."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from exporter.demo.recording import load
from exporter.engines import detect
from exporter.engines.sample import EngineSample, ItlHistogram
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.requests.tiers import Tiers
from exporter.requests.window import WindowItl

RECORDINGS = Path(__file__).parents[2] / "recordings"
NOT_TOLD = Unavailable(Reason.NOT_REPORTED)
BOUNDS = (0.01, 0.025, math.inf)


def gaps(*counts: float, seconds: float = 0.0, bounds: tuple[float, ...] = BOUNDS) -> ItlHistogram:
    """Cumulative counts, as on the page."""
    return ItlHistogram(bounds, counts, seconds)


def counts(window: WindowItl) -> dict[str, list[float]]:
    """Per tier the gaps per bucket, tiers without any left out."""
    return {tier: found.counts for tier, found in window.tiers_seen() if found.count}


@pytest.fixture
def window() -> WindowItl:
    return WindowItl(Tiers((1000, 2000)))


def test_an_interval_goes_to_the_mean_context_of_its_ends(window: WindowItl) -> None:
    """3,000 tokens in 2 sequences, then 5,000 in 3: 8,000 / 5 = 1,600 tokens a sequence."""
    window.observe(gaps(100, 200, 300, seconds=9.0), 3000, 2)
    window.observe(gaps(104, 207, 307, seconds=9.5), 5000, 3)
    assert counts(window) == {"2000": [4, 3, 0]}
    (tier,) = [found for label, found in window.tiers_seen() if label == "2000"]
    assert tier.sum_seconds == pytest.approx(0.5)
    assert window.mean_itl_seconds == pytest.approx(0.5 / 7)
    assert list(window.cumulative(tier)) == [("0.01", 4), ("0.025", 7), ("+Inf", 7)]


def test_the_bound_belongs_to_the_tier(window: WindowItl) -> None:
    """Inclusive, as for finished requests; beyond the last bound is +Inf."""
    for tokens in (1000, 1001, 2001):
        window.observe(gaps(0, 0, 0), tokens, 1)
        window.observe(gaps(1, 1, 1), tokens, 1)
        window.observe(gaps(0, 0, 0), NOT_TOLD, NOT_TOLD)
    assert counts(window) == {"1000": [1, 0, 0], "2000": [1, 0, 0], "+Inf": [1, 0, 0]}


def test_nothing_is_known_about_what_came_before(window: WindowItl) -> None:
    """An exporter that starts beside a busy engine must not put its past into today's tier."""
    window.observe(gaps(100, 200, 300), 500, 1)
    assert counts(window) == {}
    assert [tier for tier, _ in window.tiers_seen()] == ["1000", "2000", "+Inf"]


def test_a_restarted_engine(window: WindowItl) -> None:
    """Lower counts: all of them are new, and only the newer poll knows their context."""
    window.observe(gaps(100, 200, 300, seconds=9.0), 9000, 1)
    window.observe(gaps(2, 5, 5, seconds=0.1), 500, 1)
    assert counts(window) == {"1000": [2, 3, 0]}
    assert window.mean_itl_seconds == pytest.approx(0.02)


def test_other_buckets_after_a_restart(window: WindowItl) -> None:
    """--custom-histogram-buckets: counts of other bounds can't be added, so the tiers start again."""
    window.observe(gaps(1, 2, 3), 500, 1)
    window.observe(gaps(2, 3, 4), 500, 1)
    window.observe(gaps(5, 6, bounds=(0.02, math.inf)), 500, 1)
    assert counts(window) == {"1000": [5, 1]}
    window.observe(gaps(6, 8, bounds=(0.02, math.inf)), 500, 1)
    assert counts(window) == {"1000": [6, 2]}


def test_an_idle_end_has_no_say(window: WindowItl) -> None:
    """The last sequence ended within the interval: the poll that still saw it tells the context."""
    window.observe(gaps(0, 0, 0), 1500, 1)
    window.observe(gaps(7, 7, 7), 0, 0)
    assert counts(window) == {"2000": [7, 0, 0]}


@pytest.mark.parametrize(("used", "running"), [(0, 0), (NOT_TOLD, 1), (100, NOT_TOLD)])
def test_gaps_without_a_context_are_counted_as_such(
    window: WindowItl, used: float | Unavailable, running: float | Unavailable
) -> None:
    """A request that came and went between two polls, or an engine that does not tell: no guess."""
    window.observe(gaps(0, 0, 0), used, running)
    window.observe(gaps(3, 3, 3, seconds=0.3), used, running)
    assert (counts(window), window.unattributed) == ({}, 3)
    assert window.mean_itl_seconds == pytest.approx(0.1)


def test_a_poll_without_the_histogram(window: WindowItl) -> None:
    """It may be missing once; the next one spans both intervals."""
    window.observe(gaps(0, 0, 0), 500, 1)
    window.observe(NOT_TOLD, 500, 1)
    assert window.mean_itl_seconds is None
    window.observe(gaps(3, 3, 3), 500, 1)
    assert counts(window) == {"1000": [3, 0, 0]}


def test_counts_in_one_bucket_may_shift(window: WindowItl) -> None:
    """Pages that contradict themselves give no negative buckets (counters must not fall)."""
    window.observe(gaps(5, 5, 9), 500, 1)
    window.observe(gaps(5, 9, 12), 500, 1)
    assert all(many >= 0 for found in counts(window).values() for many in found)


def _sample(engine: str, page: str) -> EngineSample:
    read = detect.read(page)
    assert read.software == engine
    return detect.samples(read, None)[0]


@pytest.mark.parametrize(
    ("engine", "folder"),
    [("vllm", "vllm-0.32.0-llama-preemptions"), ("sglang", "sglang-0.5.23-llama-retractions")],
)
def test_the_engines_histograms_are_read_whole(engine: str, folder: str) -> None:
    """All series of the family and nothing else, whatever labels they have."""
    page = (RECORDINGS / folder / "after.prom").read_text()
    found = _sample(engine, page).itl
    assert known(found)
    lines = [line for line in page.splitlines() if line.startswith(f"{engine}:inter_token_latency_seconds_")]
    assert found.counts[-1] == sum(float(x.split()[-1]) for x in lines if "_count{" in x)
    assert found.sum_seconds == pytest.approx(sum(float(x.split()[-1]) for x in lines if "_sum{" in x))
    if engine == "vllm":
        # 51,369 output tokens of 286 requests in the spans, less the first of each.
        assert found.counts[-1] == 51_369 - 286


def test_the_old_name_is_read_and_never_beside_the_new() -> None:
    """0.10.2 to 0.13 have both; counting both would count every token twice."""
    page = (RECORDINGS / "vllm-0.32.0-llama-preemptions" / "after.prom").read_text()
    old = "".join(
        line.replace("inter_token_latency", "time_per_output_token") + "\n"
        for line in page.splitlines()
        if line.startswith("vllm:inter_token_latency_seconds_")
    )
    without = "".join(
        line + "\n" for line in page.splitlines() if "vllm:inter_token_latency_seconds" not in line
    )
    assert _sample("vllm", page + old).itl == _sample("vllm", without + old).itl == _sample("vllm", page).itl
    assert isinstance(_sample("vllm", without).itl, Unavailable)


@pytest.mark.parametrize("bad", ['le="x"', 'le="nan"'])
def test_buckets_that_are_none(bad: str) -> None:
    """No number, no histogram; the rest of the page stands."""
    page = (RECORDINGS / "vllm-0.32.0-llama-preemptions" / "after.prom").read_text()
    line = 'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="llama"}'
    sample = _sample("vllm", page.replace(line, line.replace('le="0.05"', bad)))
    assert isinstance(sample.itl, Unavailable)
    assert known(sample.num_blocks)


def _trace_tiers(bounds: tuple[int, ...]) -> dict[str, tuple[int, float]]:
    """Gaps and their mean per tier of final context, from the spans of the recorded run."""
    tiers = Tiers(bounds)
    gaps_of: dict[str, list[tuple[int, float]]] = defaultdict(list)
    spans = RECORDINGS / "vllm-0.32.0-llama-preemptions" / "otlp-request-spans.jsonl"
    for line in spans.read_text().splitlines():
        said = json.loads(line)["attributes"]
        prompt, output = said["gen_ai.usage.prompt_tokens"], said["gen_ai.usage.completion_tokens"]
        decode = said["gen_ai.latency.time_in_model_decode"]
        gaps_of[tiers.label_of(prompt + output)].append((output - 1, decode))
    return {
        tier: (sum(n for n, _ in all_), sum(s for _, s in all_) / sum(n for n, _ in all_))
        for tier, all_ in gaps_of.items()
    }


@pytest.mark.parametrize(("seconds_apart", "worst"), [((1, 2), 0.126), ((3, 5), 0.193)])
def test_how_wrong_it_is(seconds_apart: tuple[int, ...], worst: float) -> None:
    """The figures the documentation states, from the pages and the spans of one recorded run.

    Short requests beside long ones: the short tiers get nothing, and that is what the test holds fast too.
    Where the polls fall matters, so every offset is tried.
    """
    truth = _trace_tiers((64, 256, 1024))
    short = truth["64"][0] + truth["256"][0]
    assert 0.04 < short / sum(n for n, _ in truth.values()) < 0.05
    polls = []
    for frame in load("vllm").frames:  # 1.0 s apart
        one = _sample("vllm", frame.page_text)
        assert known(one.usage_ratio)
        assert known(one.num_blocks)
        # The pool's one null block is never used; a block of this run is 32 tokens.
        used = round(one.usage_ratio * (one.num_blocks - 1)) * 32
        polls.append((one.itl, used, one.running_sequences))
    errors = []
    for step in seconds_apart:
        for offset in range(step):
            window = WindowItl(Tiers((64, 256, 1024)))
            for poll in polls[offset::step]:
                window.observe(*poll)
            found = {tier: got.sum_seconds / got.count for tier, got in window.tiers_seen() if got.count}
            assert set(found) <= {"1024", "+Inf"}
            errors += [found[tier] / truth[tier][1] - 1 for tier in found]
    assert max(map(abs, errors)) == pytest.approx(worst, abs=0.002)
