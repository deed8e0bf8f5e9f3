"""Every query of every board in the real Prometheus, over the real exporter's series from the recordings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import pytest

from exporter.demo import load
from exporter.requests.tiers import ITL_BOUNDS
from grafana.preview import picture
from grafana.source import Source
from tests.alerts.stand import Prometheus

from .boards import COMMITTED, panels, selectors
from .recorded import START, STEP_S
from .stand import END
from .tapes import pods

ENGINES: Final = {"vllm": "vllm-0", "sglang": "sglang-0"}
# (title, query) -> why there is nothing, by engine. A query that gets data makes its line here a failure.
NEVER: Final = {
    ("Probes", "A"): "the recorded exporter sends no requests of its own",
    ("Probes", "B"): "the recorded exporter sends no requests of its own",
    ("Traces passed on", "A"): "no collector behind the recorded exporter",
    ("Traces passed on", "B"): "no collector behind the recorded exporter",
    ("Failed polls by reason", "A"): "neither engine failed (another pod's did, see below)",
    ("Samples that were unusable", "A"): "the recorded pages are sound",
    ("Reports dropped", "A"): "every recorded request is sound",
    ("Reports dropped", "B"): "no request was reported twice",
    ("Bodies refused by the receivers", "A"): "every recorded export is sound",
    ("Gaps that no tier got", "A"): "no estimate is made where finished requests are reported",
    ("What contradicts what", "A"): "no two sources disagree about the recorded engines",
}
EMPTY: Final = {
    "vllm": {
        **NEVER,
        ("Pool: in use, reclaimable, free", "B"): "vLLM reports no reclaimable tokens",
        ("Evicted tokens", "A"): "vLLM reports no evicted tokens",
    },
    "sglang": {
        **NEVER,
        ("Time until full", "A"): "no half hour of the recorded run has a rising trend",
        (
            "Sequences that fit, by context tier",
            "D",
        ): "not one sequence of max_model_len fits: no ratio to it",
        ("Long tiers over the everyday one", "A"): "fewer than 20 requests of both tiers in ten minutes",
    },
}


def source(prometheus: Prometheus, **chosen: str) -> Source:
    """The whole afternoon, with variables chosen."""
    return Source(prometheus.url, START, END, STEP_S, STEP_S, chosen)


@pytest.mark.parametrize("engine", ENGINES)
def test_no_panel_is_empty_where_data_exists(prometheus: Prometheus, engine: str) -> None:
    """A panel that is empty for one engine, without anybody knowing why, is a broken one."""
    asked = source(prometheus, pod=ENGINES[engine])
    empty, filled = set[tuple[str, str]](), set[tuple[str, str]]()
    for _, panel in panels():
        for target in panel["targets"]:
            key = (panel["title"], target["refId"])
            (filled if asked.answer(target) else empty).add(key)
    assert empty - filled == set(EMPTY[engine])


# Engines at work of which nothing but the page is read: panel that stays empty -> what it says.
_TABLE: Final = "see “Why is a panel empty?”"
_NO_RECORDS: Final = "no finished requests are reported, or no traffic"
_NO_COST: Final = f"no --price-per-hour, {_NO_RECORDS}"
_NO_FLOOR: Final = "needs --gpu-bandwidth and the checkpoint's size"
_ALL_WELL: Final = "none was dropped"
_ITL: Final = f"no traffic, or not told: {_TABLE}"
_NOT_SET_UP: Final = {
    "Cost of what is held, by tier": _NO_COST,
    "Cost of a request, by tier": _NO_COST,
    "Who holds the cache, by context tier": _NO_RECORDS,
    "Long contexts: share of the cache, share of requests": _NO_RECORDS,
    "TTFT, median": _NO_RECORDS,
    "TTFT, p95": _NO_RECORDS,
    "TTFT of tier $context": _NO_RECORDS,
    "Decode floor": _NO_FLOOR,
    "ITL over the floor": _NO_FLOOR,
    "What contradicts what": "no two sources disagree",
    "Failed polls by reason": "no poll failed",
    "Samples that were unusable": _ALL_WELL,
    "Reports dropped": _ALL_WELL,
    "Bodies refused by the receivers": "none was refused",
    "Finished requests received": "no source of finished requests is set up",
    "Traces passed on": "--forward-traces is not set",
    "Probes": "--probe-interval is not set",
}
SAID: Final = {
    "vllm-5": {**_NOT_SET_UP, "Evicted tokens": f"not told: {_TABLE}"},
    "sglang-1": {
        **_NOT_SET_UP,
        # No config.json.
        "Pool: in use, reclaimable, free": f"not told: {_TABLE}",
        "GPUs needed for $users users at once": f"not told: {_TABLE}",
        "Longest sequence, share of the pool": f"not told: {_TABLE}",
        "Our bytes over the engine's": f"nothing to compare with: {_TABLE}",
        # As for the SGLang whose requests are known.
        "Time until full": "nothing fills within four hours",
        "Long tiers over the everyday one": "too few requests in both tiers, or ITL is not told",
    },
    # Several kinds of layers: no single token count, so nobody knows the contexts of what runs,
    # and "Gaps that no tier got" has them all.
    "vllm-2": {
        **_NOT_SET_UP,
        "Alerts firing": "no alert fires",
        "Evicted tokens": f"not told: {_TABLE}",
        "Headroom in users": _ITL,
        "ITL by tier: median": _ITL,
        "ITL by tier: p95": _ITL,
        "ITL, median": _ITL,
        "ITL, p95": _ITL,
        "ITL p95 against its own baseline": _ITL,
        "ITL over its baseline": f"no baseline yet, {_ITL}",
        "Long tiers over the everyday one": "too few requests in both tiers, or ITL is not told",
        "ITL of tier $context": _ITL,
        "Where the figures come from": _ITL,
    },
}


# Signals that the texts of those panels send the reader to.
WHY_EMPTY: Final = {
    "vllm-5": {"kvcache_evicted_tokens_total"},
    "sglang-1": {
        "kvcache_used_bytes",
        "kvcache_device_bytes_per_token",
        "kvcache_sequence_bytes",
        "kvcache_arithmetic_ratio",
    },
    "vllm-2": {
        "kvcache_evicted_tokens_total",
        "kvcache_tokens_per_sequence",
        "kvcache_itl_window_seconds",
    },
}


@pytest.mark.parametrize("pod", SAID)
def test_an_empty_panel_of_a_busy_engine_does_not_say_that_it_is_idle(
    prometheus: Prometheus, pod: str
) -> None:
    """Without finished requests there is less to see, and the reason is never that there was no traffic."""
    asked = source(prometheus, pod=pod)
    said = {
        panel["title"]: panel["fieldConfig"]["defaults"]["noValue"]
        for _, panel in panels()
        if not any(asked.answer(target) for target in panel["targets"])
    }
    assert said == SAID[pod]
    # Where a text points to the table, the table has something to say.
    missing = {labels["signal"] for labels, _ in shown(prometheus, "Why is a panel empty?", pod=pod)}
    assert WHY_EMPTY[pod] <= missing


def test_heatmap_of_gaps_shows_what_a_scrape_tells(prometheus: Prometheus) -> None:
    """Estimated gaps where nobody reports requests, on the engine's own buckets; else requests, on ours."""
    heat = "ITL of tier $context"

    def bounds(pod: str) -> set[float]:
        return {float(labels["le"]) for labels, _ in shown(prometheus, heat, pod=pod)}

    assert bounds(V) == {*ITL_BOUNDS, math.inf}
    # vLLM's first bucket of its inter-token latency ends at 10 ms.
    assert min(bounds("vllm-5")) == 0.01
    assert bounds("vllm-[05]") == bounds(V)


def test_all_choices_find_what_has_no_cluster_namespace_or_pod(prometheus: Prometheus) -> None:
    """A plain Prometheus adds none of these labels; "All" must not lose its series."""
    asked = source(prometheus, target="10.0.1.9:30000")
    shown = [
        panel["title"] for _, panel in panels() if any(asked.answer(target) for target in panel["targets"])
    ]
    assert {"Pool by model and cluster", "Replicas, the odd ones first", "Why is a panel empty?"} <= set(
        shown
    )


def test_annotations_and_variables_find_something(prometheus: Prometheus) -> None:
    """An empty variable makes a board that can't be used; an empty annotation is never missed."""
    asked = source(prometheus)
    for board in COMMITTED.values():
        for one in board["annotations"]["list"]:
            assert asked.answer(one), one["name"]
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                assert asked.values(one["query"]), one["name"]


@pytest.mark.parametrize("uid", ["kvcache-latency", "kvcache-fleet"])
def test_preview_draws_every_kind_of_panel(prometheus: Prometheus, uid: str) -> None:
    """Between them these two boards have all kinds; a picture that fails is one that nobody looks at."""
    drawn = picture(COMMITTED[uid], source(prometheus))
    assert drawn.startswith(b"\x89PNG")
    assert 50_000 < len(drawn) < 250_000, "empty panels make a small picture"


def test_a_wrong_query_is_noticed(prometheus: Prometheus) -> None:
    """The tests above pass on errors only if this one does not."""
    with pytest.raises(ValueError, match="parse error"):
        source(prometheus).answer({"expr": "sum by (pod) (", "instant": True})


def test_labels_chosen_by_are_those_of_recorded_series(prometheus: Prometheus) -> None:
    """A recording rule that drops a label is empty as soon as somebody chooses by it."""
    for _, panel in panels():
        for target in panel["targets"]:
            for name, matchers in selectors(target["expr"]):
                if not name.startswith("kvcache:"):
                    continue
                found = prometheus.get("series", **{"match[]": name, "start": str(START), "end": str(END)})
                there = {label for one in found for label in one}
                by_variable = set(re.findall(r'(\w+)=~"\$', matchers)) - {"route", "context"}
                assert by_variable <= there, (panel["title"], name)


def shown(
    prometheus: Prometheus, title: str, ref: str = "A", **chosen: str
) -> list[tuple[Mapping[str, str], Any]]:
    """(labels, last value) of what a panel's query shows at the end of the afternoon."""
    (panel,) = {panel["title"]: panel for _, panel in panels() if panel["title"] == title}.values()
    (target,) = [one for one in panel["targets"] if one["refId"] == ref]
    return [
        (one.labels, one.points[-1][1])
        for one in source(prometheus, **chosen).answer(target)
        if one.points[-1][0] == END
    ]


def only(prometheus: Prometheus, title: str, ref: str = "A", **chosen: str) -> float:
    """The one value shown."""
    ((_, value),) = shown(prometheus, title, ref, **chosen)
    assert isinstance(value, float)
    return value


V: Final = "vllm-0"
S: Final = "sglang-0"


def test_pool_of_the_recorded_vllm(prometheus: Prometheus) -> None:
    """Frame 32 of the run: 0.8193979933 of 299 usable blocks are 245, of 32 tokens of 1,024 bytes.

    One token: K and V, 2 heads of 32, 4 layers, 2 bytes: 2 * 2 * 32 * 4 * 2 = 1,024.
    """
    block = 32 * 1024
    assert only(prometheus, "Pool: in use, reclaimable, free", "A", pod=V) == 245 * block
    # The null block belongs to the pool and to nobody.
    assert only(prometheus, "Pool: in use, reclaimable, free", "C", pod=V) == (300 - 245) * block
    assert only(prometheus, "Pool by model and cluster", "C", pod=V) == 300 * 32
    assert only(prometheus, "Fullest replicas", pod=V) == pytest.approx(245 / 299)


def by_tier(prometheus: Prometheus, title: str, ref: str = "A") -> dict[str, float]:
    """Context tier -> the value shown for the recorded vLLM."""
    return {labels["context"]: value for labels, value in shown(prometheus, title, ref, pod=V)}


def test_sequences_of_the_recorded_vllm(prometheus: Prometheus) -> None:
    """A sequence of 1,024 tokens takes 32 blocks: 299 // 32 = 9 at most, (299 - 245) // 32 = 1 now."""
    fit = "Sequences that fit, by context tier"
    at_most = {"128": 299 // 4, "512": 299 // 16, "1024": 299 // 32, "4096": 299 // 128}
    assert by_tier(prometheus, fit, "B") == at_most
    assert by_tier(prometheus, fit, "A") == {"128": 54 // 4, "512": 54 // 16, "1024": 54 // 32, "4096": 0}
    # Capping at 1,024 instead of 4,096: 9 instead of 2.
    assert by_tier(prometheus, fit, "D")["1024"] == 4.5
    # One sequence of 1,024 tokens is 1 MiB of the pool's 9,830,400 bytes, at 4 dollars an hour.
    assert by_tier(prometheus, fit, "F")["1024"] == pytest.approx(4 * 2**20 / 9_830_400)
    # 100 users: ceil(100 / 9) and 100 / 2 replicas of one GPU.
    gpus = by_tier(prometheus, "GPUs needed for $users users at once")
    assert (gpus["1024"], gpus["4096"]) == (12, 50)


def test_headroom_of_the_recorded_vllm(prometheus: Prometheus) -> None:
    """(9,600 - 7,840) free tokens over 7,840 / 8 running: 1,760 / 980 = 1.8, so one more user."""
    assert only(prometheus, "Headroom in users", pod=V) == 1


def test_a_replica_that_ran_nothing_yet_is_free(prometheus: Prometheus) -> None:
    """SGLang tells its pool at once and what is used with the first batch: until then all of it is free.

    Two ranks of 4,097 slots (one is a dummy) of 1,024 bytes; one sequence of 4,096 tokens fits into each, and
    none of 8,192, which is max_model_len; 4,096 // 1,024 = 4, 4,096 // 512 = 8, 4,096 // 128 = 32.
    """
    pool = 2 * 4097 * 1024
    plain = {"target": "10.0.1.9:30000"}
    assert only(prometheus, "Pool: in use, reclaimable, free", "A", **plain) == 0
    assert only(prometheus, "Pool: in use, reclaimable, free", "C", **plain) == pool
    assert only(prometheus, "Pool by model and cluster", "B", **plain) == 0
    assert only(prometheus, "Pool by model and cluster", "D", **plain) == 0
    fits = {"128": 2 * 32, "512": 2 * 8, "1024": 2 * 4, "8192": 0}
    for title in ("Sequences that fit, by context tier", "Room for more sequences, by tier"):
        assert {labels["context"]: value for labels, value in shown(prometheus, title, **plain)} == fits
    assert only(prometheus, "Replicas, the odd ones first", "F", **plain) == pool
    assert only(prometheus, "Replicas, the odd ones first", "G", **plain) == 0


def test_room_of_an_engine_that_cannot_tell_its_use_is_not_made_up(prometheus: Prometheus) -> None:
    """sglang-1 is at work and tells its pool's bytes, but without a config.json not what is used of them."""
    chosen = {"pod": "sglang-1"}
    assert only(prometheus, "Pool by model and cluster", "A", **chosen) > 0
    assert shown(prometheus, "Pool by model and cluster", "B", **chosen) == []
    assert shown(prometheus, "Pool: in use, reclaimable, free", "A", **chosen) == []
    assert shown(prometheus, "Pool: in use, reclaimable, free", "C", **chosen) == []


def test_load_of_both_engines(prometheus: Prometheus) -> None:
    """Frame 32 as recorded: vLLM runs 8 and queues 4; SGLang runs 7 and queues 9."""
    assert only(prometheus, "Running and waiting", "A", pod=V) == 8
    assert only(prometheus, "Running and waiting", "B", pod=V) == 4
    assert only(prometheus, "Running and waiting", "A", pod=S) == 7
    assert only(prometheus, "Running and waiting", "B", pod=S) == 9


def test_states(prometheus: Prometheus) -> None:
    """Busy (2), idle (1) and down (0) are told apart; one that ran nothing yet is idle."""
    states = {
        labels.get("pod", "plain"): value
        for labels, value in shown(prometheus, "Engines: down, idle or busy")
    }
    busy = {V: 2, S: 2, "vllm-2": 2, "vllm-5": 2, "sglang-1": 2}
    assert states == {**busy, "vllm-1": 1, "vllm-3": 1, "vllm-4": 0, "plain": 1}


def test_fleet_counts(prometheus: Prometheus) -> None:
    """Nine pods, one of them down; nobody's figures differ from ours; nobody is late but up."""
    assert only(prometheus, "Engines up") == 8
    assert only(prometheus, "Engines down") == 1
    assert only(prometheus, "Stale") == 0
    assert only(prometheus, "Arithmetic mismatches") == 0
    assert only(prometheus, "Engines without config.json") == 2
    assert only(prometheus, "Exporters scraped") == 9
    odd = sorted(shown(prometheus, "Replicas, the odd ones first"), key=lambda one: -one[1])
    assert odd[0][0]["pod"] == "vllm-4", "the one that is down comes first"


@pytest.mark.parametrize("chosen", [{"model": "mistral_sw"}, {"engine": "0"}])
def test_an_outage_is_seen_whatever_model_is_chosen(
    prometheus: Prometheus, chosen: Mapping[str, str]
) -> None:
    """vllm-4 served mistral_sw on rank 0, and is down: its alerts and reasons know neither any more."""
    alerts = [labels for labels, _ in shown(prometheus, "Alerts firing", **chosen)]
    assert ("KVCacheEngineDown", "vllm-4") in [(one["alertname"], one.get("pod")) for one in alerts]
    (down,) = [
        labels
        for labels, _ in shown(prometheus, "Why is a panel empty?", **chosen)
        if labels["signal"] == "kvcache_engine_up"
    ]
    assert down["reason"].startswith("connection_")
    reasons = [labels["reason"] for labels, _ in shown(prometheus, "Missing series by reason", **chosen)]
    assert down["reason"] in reasons
    for board in COMMITTED.values():
        (marks,) = [one for one in board["annotations"]["list"] if one["name"] == "Alerts"]
        marked = [one.labels["alertname"] for one in source(prometheus, **chosen).answer(marks)]
        assert "KVCacheEngineDown" in marked
    # Whose model is known stays chosen by it.
    other = [labels["model_name"] for labels in alerts if labels.get("model_name")]
    assert "model" not in chosen or set(other) <= {chosen["model"]}


def test_down_engine_says_why(prometheus: Prometheus) -> None:
    """Polls that fail are counted by reason: one a minute here."""
    ((labels, value),) = shown(prometheus, "Failed polls by reason", pod="vllm-4")
    assert labels["reason"].startswith("connection_")
    assert value == pytest.approx(1 / 60)


def test_preempted_share_of_the_recorded_vllm(prometheus: Prometheus) -> None:
    """Between frames 17 and 32 of the last run, by the engine's own counters, read off the pages here.

    A window of 15 minutes ends at the last scrape and begins with frame 17 or 18, whichever is just inside;
    Prometheus stretches both counters by the same factor, so the share is not touched by it.
    """

    def told(page: str, name: str) -> float:
        found = re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", page, re.MULTILINE)
        return sum(map(float, found))

    def preempted(page: str) -> float:
        """n1 + ... + n5, n1 = sum - 2 n2 - 3 n3 - 4 n4 - 5 n5, from the histogram's buckets."""
        at = {
            le: float(count)
            for le, count in re.findall(
                r'^vllm:request_num_preemptions_bucket\{.*le="([^"]+)".*\} (\S+)$', page, re.MULTILINE
            )
        }
        several = [at[f"{n}.0"] - at[f"{n - 1}.0"] for n in (2, 3, 4, 5)]
        single = told(page, "request_num_preemptions_sum") - sum(
            n * many for n, many in zip((2, 3, 4, 5), several, strict=True)
        )
        return single + sum(several)

    frames = [frame.page_text for frame in load("vllm").frames]
    shares = [
        (preempted(frames[32]) - preempted(frames[first]))
        / (told(frames[32], "request_success_total") - told(frames[first], "request_success_total"))
        for first in (17, 18)
    ]
    seen = only(prometheus, "Preempted share of requests", pod=V)
    assert any(seen == pytest.approx(share) for share in shares), (seen, shares)


def test_itl_of_a_tier(prometheus: Prometheus) -> None:
    """The median over the afternoon lies in the bucket of the recorded requests' own median.

    Computed from the spans themselves: decode time over output tokens less one.
    """
    # No checkpoint is needed to look at a tape.
    spans = next(pod.spans for pod in pods(Path("/nonexistent")) if pod.name == V)
    gaps = [
        said["gen_ai.latency.time_in_model_decode"] / (said["gen_ai.usage.completion_tokens"] - 1)
        for said in (span["attributes"] for span in spans)
        if said["gen_ai.usage.prompt_tokens"] + said["gen_ai.usage.completion_tokens"] > 1024
    ]
    expected = median(gaps)
    (seen,) = [
        value
        for labels, value in shown(prometheus, "ITL by tier: median", pod=V)
        if (labels["context"], labels["source"]) == ("+Inf", "trace")
    ]
    low = max((bound for bound in ITL_BOUNDS if bound < expected), default=0.0)
    high = min(bound for bound in ITL_BOUNDS if bound >= expected)
    assert low <= seen <= high
