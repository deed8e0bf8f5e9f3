"""Pressure: for whoever was paged."""

from __future__ import annotations

from typing import Any, Final

from exporter import catalogue as c
from grafana import panels as p
from grafana import queries as q
from grafana import variables
from grafana.board import board
from grafana.common import LIMITS, state, why_empty

UID: Final = "kvcache-pressure"
_USAGE = q.of(c.USAGE_RATIO)


def _full() -> list[p.AnyPanel]:
    share = q.recorded("kvcache:usage_ratio:share_above_1h", q.RANK)
    boundary = LIMITS["usage_high_p95"]["boundary"]
    return [
        p.lines(
            "KV cache usage",
            "Peak: the fullest engine, at its fullest in each interval. p95: of the exporter's own polls in "
            "the last 5 minutes, which see what a scrape misses. Median: the engine in the middle. Over the "
            "dashed line for long: find the replica on the right, then who holds the cache, below.",
            "percentunit",
            (f"max(max_over_time({_USAGE}[$__rate_interval]))", "peak"),
            (f"max({q.recorded('kvcache:usage_ratio:p95_5m', q.RANK)})", "p95 of polls, fullest engine"),
            (f"quantile(0.5, {_USAGE})", "median engine"),
            limit=LIMITS["usage_high"]["ratio"],
            most=1,
        ),
        p.bars(
            "Fullest replicas",
            "The ten replicas with the fullest cache now. One alone: routing or one heavy user. All of them: "
            "too little room for the load.",
            "percentunit",
            (f"topk(10, max by ({q.REPLICA}) ({_USAGE}))", q.REPLICA_LEGEND),
            steps=p.above(LIMITS["usage_high"]["ratio"]),
            most=1,
        ),
        p.lines(
            f"Share of the last hour above {float(boundary):.0%}",
            "Exact, from the exporter's polls: above the dashed line usage at p95 is over the threshold. "
            "Short peaks are normal; a high share means that the pool is too small for the usual load.",
            "percentunit",
            (
                f"topk(10, max by ({q.REPLICA}) ({share}))",
                q.REPLICA_LEGEND,
            ),
            limit=LIMITS["usage_high_p95"]["share"],
            most=1,
            size=(8, 8),
        ),
        p.lines(
            "Time until full",
            "At the trend of the last half hour, the five soonest replicas. Empty is good: nothing fills "
            "within four hours. Below the dashed line: shed load or add a replica now.",
            "s",
            (
                f"bottomk(5, min by ({q.REPLICA}) ({q.soonest()}))",
                q.REPLICA_LEGEND,
            ),
            limit=LIMITS["will_fill"]["within_seconds"],
            empty="nothing fills within four hours",
            size=(8, 8),
        ),
        p.lines(
            "Running and waiting",
            "Sequences being decoded and queued, all chosen engines. Waiting while usage is high: the cache "
            "is the limit. Waiting while usage is low: compute or the engine's own cap on sequences is. Both "
            "flat with work to do: the engine is stuck.",
            "short",
            (f"sum({q.of(c.RUNNING_SEQUENCES)})", "running"),
            (f"sum({q.of(c.WAITING_SEQUENCES)})", "waiting"),
            size=(8, 8),
        ),
    ]


def _thrown_out() -> list[p.AnyPanel]:
    ratio = q.recorded("kvcache:preempted:ratio_15m", q.REQUESTS)
    return [
        p.lines(
            "Preempted share of requests",
            "Of the last 15 minutes, the five worst replicas. `requests`: share of requests preempted at "
            "least once. `events`: the engine tells events only, so one victim may count many times. Over "
            "the dashed line users notice: their requests are computed twice.",
            "percentunit",
            (
                f"topk(5, max by ({q.REPLICA}, basis) ({ratio}))",
                q.REPLICA_LEGEND + " ({{basis}})",
            ),
            limit=LIMITS["preemptions"]["ratio"],
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(8, 8),
        ),
        p.lines(
            "Preemptions and retractions",
            "Events per second: running requests thrown out to make room, and computed again. Should be 0.",
            "cps",
            (q.per_second(c.PREEMPTIONS, by="model_name"), "{{model_name}}"),
            size=(8, 8),
        ),
        p.lines(
            "Evicted tokens",
            "Cached tokens a second that were given up for new ones (SGLang; vLLM does not report them). "
            "High together with a low hit ratio: the pool is too small to keep the prefixes that come back.",
            "cps",
            (q.per_second(c.EVICTED_TOKENS, by="model_name"), "{{model_name}}"),
            size=(8, 8),
        ),
    ]


def _prefixes() -> list[p.AnyPanel]:
    objective = q.of(c.PREFIX_HIT_OBJECTIVE, 'route=~"$route"')
    held = q.recorded("kvcache:held_token_seconds:rate_15m", q.REQUESTS)
    hit = q.recorded("kvcache:prefix_hit:ratio_30m", q.REQUESTS, 'route=~"$route"')
    return [
        p.lines(
            "Prefix hit ratio against its objective",
            "Of the last 30 minutes, by route, the worst replica of each. The objective is the exporter's "
            "setting prefix_hit_objectives; routes without one have no line for it. Below it: was the "
            "prompt's beginning changed, or are its blocks evicted before they come back?",
            "percentunit",
            (f"min by (route) ({hit})", "hit ratio {{route}}"),
            (
                f"max by (route) ({objective})",
                "objective {{route}}",
            ),
            most=1,
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
        ),
        p.lines(
            "Who holds the cache, by context tier",
            "Share of the token-seconds that finished requests held in the last 15 minutes. Needs finished "
            "requests (trace, log or plugin). One long tier holding most of it: a few users take "
            "everybody's room.",
            "percentunit",
            (
                f"sum by (context) ({held}) / on () group_left () (sum({held}) > 0)",
                "up to {{context}} tokens",
            ),
            stacked=True,
            most=1,
            empty=p.NO_RECORDS,
        ),
        p.bars(
            "Long contexts: share of the cache, share of requests",
            "Tiers that are not everyday ones (`tiers.short` of the alert thresholds). A share of the cache "
            f"over {LIMITS['context_hog']['held_ratio']:.0%} from less than "
            f"{LIMITS['context_hog']['requests_ratio']:.0%} of the requests is a hog: give them a pool of "
            "their own.",
            "percentunit",
            (
                f"topk(5, {q.recorded('kvcache:long_held_share:ratio_15m', q.REQUESTS)})",
                "cache: " + q.REPLICA_LEGEND,
            ),
            (
                f"topk(5, {q.recorded('kvcache:long_requests_share:ratio_15m', q.REQUESTS)})",
                "requests: " + q.REPLICA_LEGEND,
            ),
            most=1,
            empty=p.NO_RECORDS,
            size=(12, 8),
        ),
        p.rows(
            "Alerts firing",
            "Ours, for the chosen engines. Each has a runbook page of its name. An engine that is down names "
            "no model, so its alert is here whatever model is chosen.",
            {
                "alertname": "Alert",
                "severity": "Severity",
                "cluster": "Cluster",
                "pod": "Pod",
                "target": "Target",
                "model_name": "Model",
            },
            [
                p.Column(
                    "Alerts",
                    f"sum by (alertname, severity, cluster, pod, target, model_name) ({q.firing()})",
                )
            ],
            sort="Severity",
            descending=False,
            texts={
                "Severity": {
                    "critical": ("critical", p.RED),
                    "warning": ("warning", p.YELLOW),
                    "info": ("info", p.BLUE),
                }
            },
            empty="no alert fires",
            size=(12, 8),
        ),
    ]


def made() -> dict[str, Any]:
    """The board."""
    return board(
        UID,
        "KV cache: pressure",
        "Is the cache full, who fills it, and what does it do to users? Alerts point here.",
        [
            ("How full", [state(), *_full()]),
            ("What it costs users", _thrown_out()),
            ("Who and why", _prefixes()),
            ("What is missing", [why_empty()]),
        ],
        more_variables=[variables.route()],
        since="now-3h",
    )
