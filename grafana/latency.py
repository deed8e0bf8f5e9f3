"""Latency by context: what long contexts do to the gaps between tokens."""

from __future__ import annotations

from typing import Any, Final

from exporter import catalogue as c
from grafana import panels as p
from grafana import queries as q
from grafana import variables
from grafana.board import board
from grafana.common import LIMITS, state, why_empty

UID: Final = "kvcache-latency"
TIERS = 'context=~"$context"'
LEGEND = "{{context}} ({{source}})"
_ITL = LIMITS["itl_regression"]


def _quantile(share: float, metric: c.Metric, window: str, source: str = "") -> str:
    by = "context, le" if source else "context, source, le"
    rate = f"sum by ({by}) (rate({q.of(metric, TIERS, suffix='_bucket')}[{window}]))"
    told = f"histogram_quantile({share}, {rate}) >= 0"
    return f'label_replace({told}, "source", "{source}", "", "")' if source else told


def itl(share: float, window: str) -> str:
    """ITL by tier: of finished requests, else the estimate from scrapes."""
    exact = _quantile(share, c.ITL_SECONDS, window)
    return f"{exact} or {_quantile(share, c.ITL_WINDOW_SECONDS, window, 'window')}"


def _side_by_side() -> list[p.AnyPanel]:
    told = (
        "Over the whole range shown. Each tier is a bar; the word in brackets is where the figure comes "
        "from: trace, log and plugin are finished requests, window is an estimate from scrapes alone. "
    )
    return [
        p.bars(
            "ITL by tier: median",
            told + "Long tiers much slower than short ones: decode is bound by reading their KV cache.",
            "s",
            (f"sort_desc({itl(0.5, '$__range')})", LEGEND),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(8, 8),
        ),
        p.bars(
            "ITL by tier: p95",
            told + "Far above the median: steps are held up, by prefills of others or by preemption.",
            "s",
            (f"sort_desc({itl(0.95, '$__range')})", LEGEND),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(8, 8),
        ),
        p.bars(
            "Where the figures come from",
            "Observations of the last 10 minutes by source: finished requests for trace, log and plugin, "
            "gaps for window. Only window: README of the exporter says how to get better figures.",
            "short",
            (
                f"sum by (source) ({q.recorded('kvcache:itl_observations:increase_10m', q.REQUESTS)}) > 0",
                "{{source}}",
            ),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(8, 8),
        ),
    ]


def _itl() -> list[p.AnyPanel]:
    baseline = q.recorded("kvcache:itl_seconds:p95_baseline", q.REQUESTS, TIERS)
    now = q.recorded("kvcache:itl_seconds:p95_10m", q.REQUESTS, TIERS)
    ratio = q.recorded("kvcache:itl_to_baseline:ratio", q.REQUESTS, TIERS)
    reference = q.recorded("kvcache:itl_to_reference_tier:ratio", q.REQUESTS)
    return [
        p.lines(
            "ITL, median",
            "Time between output tokens, by tier. All tiers rise together: load. One rises alone: its own "
            "contexts.",
            "s",
            (itl(0.5, "$__rate_interval"), LEGEND),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
        ),
        p.lines(
            "ITL, p95",
            "The slow end. Jumps with a steady median: single steps are held up, see Pressure.",
            "s",
            (itl(0.95, "$__rate_interval"), LEGEND),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
        ),
        p.lines(
            "ITL p95 against its own baseline",
            "Worst engine of each tier, last 10 minutes, beside the median of the day before. No baseline: "
            f"fewer than {_ITL['baseline_min_samples']} minutes with traffic in that day.",
            "s",
            (f"max by (context) ({now})", "{{context}} now"),
            (f"max by (context) ({baseline})", "{{context}} baseline"),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(8, 8),
        ),
        p.lines(
            "ITL over its baseline",
            "How many times its own baseline, by p95 and by the mean; the mean moves where the engine's "
            "buckets are too coarse for p95. Over the dashed line an alert fires: what changed, load or "
            "release?",
            "suffix:×",
            (f"max by (context, basis) ({ratio})", "{{context}} ({{basis}})"),
            limit=_ITL["ratio"],
            empty=f"no baseline yet, {p.NO_TRAFFIC_OR_NOT_TOLD}",
            size=(8, 8),
        ),
        p.lines(
            "Long tiers over the everyday one",
            f"p95 of each long tier over that of tier {LIMITS['tiers']['reference']}. Over the dashed line: "
            "long contexts are slow for their own length; compare with the decode floor.",
            "suffix:×",
            (f"max by (context) ({reference})", "{{context}}"),
            limit=LIMITS["long_context_slow"]["ratio"],
            empty="too few requests in both tiers, or ITL is not told",
            size=(8, 8),
        ),
        p.heat(
            "ITL of tier $context",
            "Finished requests by mean gap; where no chosen engine reports any, single gaps, estimated "
            "from scrapes. One band is steady, two are two kinds of requests or a queue.",
            "s",
            # Never both at once: requests and gaps do not add up, nor do the engines' buckets and ours.
            "\nor on () ".join(
                f"sum by (le) (increase({q.of(metric, TIERS, suffix='_bucket')}[$__rate_interval]))"
                for metric in (c.ITL_SECONDS, c.ITL_WINDOW_SECONDS)
            ),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            repeat="context",
            size=(6, 7),
        ),
    ]


def _ttft() -> list[p.AnyPanel]:
    ttft = (_quantile(share, c.TTFT_SECONDS, "$__rate_interval") for share in (0.5, 0.95))
    told = "Time to the first token, waiting in the queue included, by tier of the final context. "
    return [
        p.lines(
            "TTFT, median",
            told + "Rises with the prompt's length; a jump of all tiers is the queue.",
            "s",
            (next(ttft), LEGEND),
            empty=p.NO_RECORDS,
        ),
        p.lines(
            "TTFT, p95",
            told + "High while ITL is fine: requests wait for room in the cache.",
            "s",
            (next(ttft), LEGEND),
            empty=p.NO_RECORDS,
        ),
        p.heat(
            "TTFT of tier $context",
            "Finished requests by time to first token. Two bands: one of them waited, or missed the prefix "
            "cache.",
            "s",
            f"sum by (le) (increase({q.of(c.TTFT_SECONDS, TIERS, suffix='_bucket')}[$__rate_interval]))",
            empty=p.NO_RECORDS,
            repeat="context",
            size=(6, 7),
        ),
    ]


def _floor() -> list[p.AnyPanel]:
    floor = f"max by ({q.REPLICA}) ({q.of(c.DECODE_FLOOR_SECONDS)})"
    return [
        p.lines(
            "Decode floor",
            "The least time of a step: weights and live KV over the GPUs' memory bandwidth. Needs "
            "--gpu-bandwidth. Rises with usage; only less KV, a smaller dtype or faster memory lowers it.",
            "s",
            (f"topk(5, {floor})", q.REPLICA_LEGEND),
            empty="needs --gpu-bandwidth and the checkpoint's size",
        ),
        p.lines(
            "ITL over the floor",
            "1 is the memory's limit: nothing but hardware helps. High: batching, prefills or the host take "
            "the time.",
            "suffix:×",
            (f"topk(5, max by ({q.REPLICA}) ({q.of(c.ITL_FLOOR_RATIO)}))", q.REPLICA_LEGEND),
            empty="needs --gpu-bandwidth and the checkpoint's size",
        ),
    ]


def made() -> dict[str, Any]:
    """The board."""
    return board(
        UID,
        "KV cache: latency by context",
        "Inter-token latency and time to first token by the length of the context, against baseline and "
        "floor.",
        [
            ("Tiers side by side", [state(), *_side_by_side()]),
            ("Time between tokens", _itl()),
            ("Time to the first token", _ttft()),
            ("How fast it could be", _floor()),
            ("What is missing", [why_empty()]),
        ],
        more_variables=[variables.context(c.CONTEXT_REQUESTS)],
    )
