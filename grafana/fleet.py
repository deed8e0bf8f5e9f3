"""Fleet: a row per replica, the odd ones first."""

from __future__ import annotations

from typing import Any, Final

from alerts.rules import thresholds
from exporter import catalogue as c
from grafana import panels as p
from grafana import queries as q
from grafana.board import board
from grafana.common import LIMITS, STATES, state, why_empty

UID: Final = "kvcache-fleet"
_DIFFERENCE = thresholds()["arithmetic"]["difference"]
_UP = q.up()
_MISMATCH = f"max by ({q.REPLICA}) (abs({q.of(c.ARITHMETIC_RATIO)} - 1))"
_STALE = f"max by ({q.REPLICA}) ({q.of(c.READOUT_AGE)} > 3 * {q.of(c.POLL_INTERVAL)}) and {_UP} == 1"
_CONTRADICTIONS = f"count by ({q.REPLICA}) ({q.of(c.INPUT_CONTRADICTION)})"
_USAGE = q.of(c.USAGE_RATIO)


def _oddness() -> str:
    """Larger is odder: a shared name, down, stale, a mismatch, a contradiction, far from the median."""
    far = (
        f"max by ({q.REPLICA}) (abs({_USAGE} - on (model_name) group_left () "
        f"quantile by (model_name) (0.5, {_USAGE})))"
    )
    parts = (
        f"({q.sharing()} > bool 1) * 200",
        f"({_UP} == bool 0) * 100",
        f"(({_STALE}) * 0 + 50 or {_UP} * 0)",
        f"(({_MISMATCH} > {_DIFFERENCE}) * 0 + 20 or {_UP} * 0)",
        f"(({_CONTRADICTIONS}) * 0 + 10 or {_UP} * 0)",
        f"({far} or {_UP} * 0)",
    )
    return "\n+ ".join(parts)


def _counts() -> list[p.AnyPanel]:
    none = p.above(1)
    return [
        p.number(
            "Engines up",
            "Engines whose page was read recently. Fewer than you run: see Down, or the scrape itself.",
            "none",
            (f"sum({_UP})", "up"),
        ),
        p.number(
            "Engines down",
            "The exporter is there and can't read its engine. The table says which.",
            "none",
            (f"count({_UP} == 0) or sum({_UP}) * 0", "down"),
            steps=none,
        ),
        p.number(
            "Stale",
            "Engines whose last good readout is older than three polls: slow, or about to be down.",
            "none",
            (f"count({_STALE}) or sum({_UP}) * 0", "stale"),
            steps=none,
        ),
        p.number(
            "Arithmetic mismatches",
            f"Engines whose own figure differs from ours by more than {_DIFFERENCE:.0%}. Do not trust their "
            "byte figures: another model's config.json, or flags that nobody told.",
            "none",
            (f"count({_MISMATCH} > {_DIFFERENCE}) or sum({_UP}) * 0", "mismatches"),
            steps=none,
        ),
        p.number(
            "Contradictions",
            "Engines with two sources that say different things about an input.",
            "none",
            (f"count({_CONTRADICTIONS}) or sum({_UP}) * 0", "contradictions"),
            steps=none,
        ),
        p.number(
            "Inputs assumed",
            "Inputs of the arithmetic that nobody told, over all engines: the engine's default was taken. "
            "Right in most cases, worth telling where a mismatch shows.",
            "none",
            (f"count({q.of(c.INPUT_ASSUMED)}) or sum({_UP}) * 0", "assumed"),
            steps=p.above(1, p.GREEN, p.YELLOW),
        ),
    ]


def _table() -> p.AnyPanel:
    info = f"{q.REPLICA}, model_name, software, version, kv_cache_dtype, config_source"
    return p.rows(
        "Replicas, the odd ones first",
        "Odd: down, stale, a mismatch, a contradiction, or a usage far from the median of its model. Of this "
        "name over 1: hosts mixed in one row, which need target names of their own. Fits now is "
        "for sequences of the longest context. Config from `default` or empty: nobody told, so mount "
        "config.json. Click a target for its Pressure board.",
        {
            "cluster": "Cluster",
            "namespace": "Namespace",
            "pod": "Pod",
            "target": "Target",
            "model_name": "Model",
            "software": "Engine",
            "version": "Version",
            "kv_cache_dtype": "Cache dtype",
            "config_source": "Config from",
        },
        [
            p.Column("Oddness", _oddness(), "none", decimals=2),
            p.Column("State", q.state(), texts=STATES),
            p.Column("Of this name", q.sharing(), steps=p.above(2)),
            p.Column("", f"max by ({info}) ({q.of(c.ENGINE_INFO)})"),
            p.Column(
                "Usage",
                f"max by ({q.REPLICA}) ({_USAGE})",
                "percentunit",
                p.above(LIMITS["usage_high"]["ratio"]),
                decimals=0,
            ),
            p.Column(
                "Free",
                f"sum by ({q.REPLICA}) ({q.of(c.CAPACITY_BYTES)} - {q.used(c.USED_BYTES, c.CAPACITY_BYTES)})",
                "decbytes",
            ),
            p.Column("Fits now", f"sum by ({q.REPLICA}) (min without (context) ({q.free_sequences()}))"),
            p.Column("Off by", _MISMATCH, "percentunit", p.above(_DIFFERENCE), decimals=1),
            p.Column("Readout age", f"max by ({q.REPLICA}) ({q.of(c.READOUT_AGE)})", "s"),
        ],
        sort="Oddness",
        size=(24, 10),
        link=(
            "Target",
            "Pressure of this engine",
            "/d/kvcache-pressure?${datasource:queryparam}&${__url_time_range}&var-target=${__data.fields.Target}",
        ),
    )


def _differences() -> list[p.AnyPanel]:
    share = q.recorded("kvcache:longest_sequence_share:ratio", q.RANK)
    drop, longest = LIMITS["capacity_dropped"], LIMITS["max_model_len"]
    return [
        p.lines(
            "Usage by replica",
            "The ten fullest of each moment. Replicas of one model that drift apart: routing.",
            "percentunit",
            (f"topk(10, max by ({q.REPLICA}) ({_USAGE}))", q.REPLICA_LEGEND),
            limit=LIMITS["usage_high"]["ratio"],
            most=1,
            size=(12, 8),
        ),
        p.lines(
            "Pool against its best of the last hours",
            f"Below the dashed line a restart found less than {drop['ratio']:.0%} of the room it had in the "
            f"last {drop['window']}: another process on the GPU, or another flag.",
            "percentunit",
            (
                f"bottomk(5, min by ({q.REPLICA}) ({q.recorded('kvcache:capacity_to_best:ratio', q.RANK)}))",
                q.REPLICA_LEGEND,
            ),
            limit=drop["ratio"],
            most=1.05,
            size=(12, 8),
        ),
        p.lines(
            "Our bytes over the engine's",
            "1 is agreement. Away from it, on either side, byte figures are not to be trusted: see /explain.",
            "suffix:×",
            (
                f"topk(10, max by ({q.REPLICA}) ({q.of(c.ARITHMETIC_RATIO)}))",
                q.REPLICA_LEGEND,
            ),
            empty=p.NOT_COMPARED,
            size=(8, 8),
        ),
        p.bars(
            "Longest sequence, share of the pool",
            f"What one sequence of max_model_len takes. Over {longest['ratio']:.0%} two users with long "
            "contexts never run together: cap the length, or give it more memory.",
            "percentunit",
            (
                f"topk(10, max by ({q.REPLICA}) ({share}))",
                q.REPLICA_LEGEND,
            ),
            steps=p.above(longest["ratio"], p.GREEN, p.YELLOW),
            size=(8, 8),
        ),
        p.rows(
            "Releases and dtypes in use",
            "More than one row for a model: a rollout under way, or one replica that was forgotten.",
            {
                "model_name": "Model",
                "software": "Engine",
                "version": "Version",
                "kv_cache_dtype": "Cache dtype",
                "attention": "Attention",
            },
            [
                p.Column(
                    "Ranks",
                    "count by (model_name, software, version, kv_cache_dtype, attention) "
                    f"({q.of(c.ENGINE_INFO)})",
                )
            ],
            sort="Model",
            descending=False,
            size=(8, 8),
        ),
        p.rows(
            "What contradicts what",
            "What two sources say about an input; the one in Used is taken. Put the wrong one right.",
            {
                "pod": "Pod",
                "target": "Target",
                "input": "Input",
                "used": "Used",
                "other": "Other",
            },
            [
                p.Column(
                    "Ranks",
                    f"count by ({q.REPLICA}, input, used, other) ({q.of(c.INPUT_CONTRADICTION)})",
                )
            ],
            sort="Target",
            descending=False,
            empty="no two sources disagree",
            size=(24, 6),
        ),
    ]


def made() -> dict[str, Any]:
    """The board."""
    return board(
        UID,
        "KV cache: fleet",
        "Every replica in a row: state, usage, room, release, dtype, and how far its figures can be trusted.",
        [
            ("Replicas", [*_counts(), _table(), state()]),
            ("Differences", _differences()),
            ("What is missing", [why_empty()]),
        ],
    )
