"""Capacity: how much room, for how many, for how long, at what price."""

from __future__ import annotations

from typing import Any, Final

from exporter import catalogue as c
from grafana import panels as p
from grafana import queries as q
from grafana import variables
from grafana.board import board
from grafana.common import LIMITS, state, why_empty

UID: Final = "kvcache-capacity"
TIER: Final = "model_name, context"
LIMIT: Final = LIMITS["usage_high"]["ratio"]

_USED, _POOL = q.used(c.USED_BYTES, c.CAPACITY_BYTES), q.of(c.CAPACITY_BYTES)
_USED_TOKENS = q.used(c.USED_TOKENS, c.CAPACITY_TOKENS)
_CACHED = f"{q.of(c.CACHED_TOKENS)} * {q.of(c.BYTES_PER_TOKEN)}"
_AT_MOST = q.of(c.MAX_SEQUENCES)
_WITH_FP8 = q.of(c.WHATIF_MAX_SEQUENCES, 'kv_cache_dtype=~"fp8.*"')
_NO_COST: Final = f"no --price-per-hour, {p.NO_RECORDS}"
_GPUS = f"round({q.of(c.BYTES_PER_TOKEN)} / ({q.of(c.DEVICE_BYTES_PER_TOKEN)} > 0))"


def _pool() -> list[p.AnyPanel]:
    free = f"sum({_POOL} - {_USED}) - (sum({_CACHED}) or sum({_USED}) * 0)"
    return [
        p.lines(
            "Pool: in use, reclaimable, free",
            "All chosen engines together. Reclaimable is cached for reuse and given up at once when somebody "
            "needs it; vLLM does not report it, so there it is part of free. In use close to the top: look "
            "at Pressure.",
            "decbytes",
            (f"sum({_USED})", "in use"),
            (f"sum({_CACHED})", "reclaimable"),
            (free, "free"),
            stacked=True,
        ),
        p.rows(
            "Pool by model and cluster",
            "What each model has in bytes and tokens, and the fullest of its engines: the mean hides one "
            "that is full. No tokens: a model with several kinds of layers has no single token count; bytes "
            "are right.",
            {"model_name": "Model", "cluster": "Cluster", "namespace": "Namespace"},
            [
                p.Column("Pool", f"sum by ({q.BY_MODEL}) ({_POOL})", "decbytes"),
                p.Column("In use", f"sum by ({q.BY_MODEL}) ({_USED})", "decbytes"),
                p.Column("Pool, tokens", f"sum by ({q.BY_MODEL}) ({q.of(c.CAPACITY_TOKENS)})", "short"),
                p.Column("In use, tokens", f"sum by ({q.BY_MODEL}) ({_USED_TOKENS})", "short"),
                p.Column(
                    "Fullest engine",
                    f"max by ({q.BY_MODEL}) ({q.of(c.USAGE_RATIO)})",
                    "percentunit",
                    p.above(LIMIT),
                ),
                p.Column("Replicas", f"count by ({q.BY_MODEL}) (sum by ({q.REPLICA}, model_name) ({_POOL}))"),
            ],
            sort="Pool",
            size=(12, 8),
        ),
    ]


def _sequences() -> list[p.AnyPanel]:
    longest = f"min without (context) ({_AT_MOST}) > 0"
    return [
        p.rows(
            "Sequences that fit, by context tier",
            "Fit now is what is free at this moment; at most is the empty pool; with fp8 is the same pool "
            "with an fp8 cache (empty where it is fp8 already). Cap gain: how many times more users fit if "
            "contexts were capped at this tier instead of the longest one. Cost columns need "
            "--price-per-hour.",
            {"model_name": "Model", "context": "Context tier"},
            [
                p.Column("Fit now", f"sum by ({TIER}) ({q.free_sequences()})", "short"),
                p.Column("At most", f"sum by ({TIER}) ({_AT_MOST})", "short"),
                p.Column(
                    "With fp8",
                    f"sum by ({TIER}) ({_WITH_FP8})",
                    "short",
                ),
                p.Column(
                    "Cap gain",
                    f"avg by ({TIER}) ({_AT_MOST} / ignoring (context) group_left () ({longest}))",
                    "suffix:×",
                    decimals=1,
                ),
                p.Column("Bytes each", f"max by ({TIER}) ({q.of(c.SEQUENCE_BYTES)})", "decbytes"),
                p.Column("Cost an hour each", f"avg by ({TIER}) ({q.of(c.SEQUENCE_COST)})", "currencyUSD"),
            ],
            sort="At most",
            size=(14, 9),
        ),
        p.bars(
            "GPUs needed for $users users at once",
            "Whole replicas of the size you run now, times their GPUs, if every user had a context of that "
            "tier. Nothing shared is counted: with common prefixes you need less. A replica's GPUs are taken "
            "from its bytes per token over those of one GPU. Set the number of users above.",
            "short",
            (
                f"sort_desc(ceil($users / (avg by ({TIER}) ({_AT_MOST}) > 0)) "
                f"* on (model_name) group_left () avg by (model_name) ({_GPUS}))",
                "{{model_name}} at {{context}}",
            ),
            size=(10, 9),
        ),
        p.lines(
            "Room for more sequences, by tier",
            "How many more sequences of each tier fit into what is free, all chosen engines together. A tier "
            "at 0 waits or preempts others. Choose one model: tiers of different models add up to nothing "
            "sensible.",
            "short",
            (f"sum by (context) ({q.free_sequences()})", "{{context}} tokens"),
            size=(14, 8),
        ),
        p.number(
            "Headroom in users",
            "How many more users fit if they are like those of now: free tokens over the tokens that one "
            "running sequence holds. Empty while nothing runs, and for a model with several kinds of layers, "
            "which has no single token count.",
            "short",
            (
                f"floor(sum by (model_name) ({q.of(c.CAPACITY_TOKENS)} - {_USED_TOKENS}) "
                f"/ (avg by (model_name) ({q.of(c.TOKENS_PER_SEQUENCE)}) > 0))",
                "{{model_name}}",
            ),
            empty=p.NO_TRAFFIC_OR_NOT_TOLD,
            size=(10, 8),
        ),
    ]


def _forecast() -> list[p.AnyPanel]:
    peak = q.recorded("kvcache:model_usage:max", q.MODEL, but=("pod",))
    return [
        p.lines(
            "Time until full",
            "At the trend of the last half hour, the soonest engine of each model. Empty is good: nothing "
            "rises. Below the dashed line an alert fires.",
            "s",
            (
                f"min by (model_name) ({q.soonest()})",
                "{{model_name}}",
            ),
            limit=LIMITS["will_fill"]["within_seconds"],
            empty="nothing fills within four hours",
            size=(9, 8),
        ),
        p.bars(
            "Fullest engine, after as long again",
            "Where the trend over the whole range shown leads when the same time has passed once more. "
            "Choose a range of a week or a month to plan; over a few hours it says nothing. Over 100 %: it "
            "fills before.",
            "percentunit",
            (f"clamp_min(predict_linear({peak}[$__range], $__range_s), 0)", q.MODEL_LEGEND),
            steps=p.above(LIMIT),
            size=(6, 8),
        ),
        p.lines(
            "Cost of what is held, by tier",
            "Dollars an hour that each context tier's share of the cache costs; what is free is nobody's. "
            "Needs --price-per-hour and finished requests (trace, log or plugin).",
            "currencyUSD",
            (
                f"sum by (context) ({q.recorded('kvcache:held_cost:dollars_per_hour', q.REQUESTS)})",
                "{{context}} tokens",
            ),
            empty=_NO_COST,
            stacked=True,
            size=(9, 8),
        ),
        p.bars(
            "Cost of a request, by tier",
            "Dollars for one finished request of each tier, mean of the last hour. Long contexts are dear "
            "because they hold much for long.",
            "currencyUSD",
            (
                f"sort_desc(avg by ({TIER}) ({q.recorded('kvcache:request_cost:dollars', q.REQUESTS)}))",
                "{{model_name}} at {{context}}",
            ),
            empty=_NO_COST,
            size=(24, 7),
        ),
    ]


def made() -> dict[str, Any]:
    """The board."""
    return board(
        UID,
        "KV cache: capacity",
        "How much room the KV caches have, for how many users of which context, for how long, and what it "
        "costs.",
        [
            ("The pool", [state(), *_pool()]),
            ("Users and contexts", _sequences()),
            ("Forecast and cost", _forecast()),
            ("What is missing", [why_empty()]),
        ],
        more_variables=[variables.users()],
    )
