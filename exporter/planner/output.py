"""An answer as JSON for programs: keys end in their unit, bytes are bytes."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from exporter.kvmath.blocks import BlockLayout
from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.plan import ContextPlan, DecodeFloor
from exporter.planner.answer import Answer
from exporter.planner.layouts import EngineLayout
from exporter.planner.remedies import remedies


def as_json(answer: Answer) -> str:
    """The answer as one JSON object; what cannot be known is left out and listed under ``unavailable``."""
    return json.dumps(as_dict(answer), indent=2, allow_nan=False)


def as_dict(answer: Answer) -> dict[str, Any]:
    """The answer as plain data.  Keys end in their unit; ``device``: one GPU, else all of the replica."""
    missing: list[dict[str, str]] = []

    def put(where: dict[str, Any], key: str, value: object, signal: str = "") -> None:
        if isinstance(value, Unavailable):
            entry = {"signal": signal or key, "reason": str(value.reason), "detail": value.detail}
            if entry not in missing:
                missing.append(entry)
        else:
            where[key] = value

    told: dict[str, Any] = {}
    _put_model(answer, told, put)
    layout, pool, weights = answer.layout, answer.pool, answer.weights
    if known(layout):
        told["bytes_per_token"] = layout.bytes_per_token
        told["device_bytes_per_token"] = layout.device_bytes_per_token
        told["state_bytes_per_sequence"] = layout.state_bytes_per_sequence
        told["layers"] = [
            {
                "count": row.count,
                "kind": str(row.kind),
                "bytes_per_token": number(row.bytes_per_token),
                "window_tokens": row.window_tokens,
                "state_bytes": row.state_bytes,
            }
            for row in layout.layers
        ]
        told["engine"] = _engine(layout)
        if answer.question.choices.override.names:
            told["set_by_hand"] = list(answer.question.choices.override.names)
        told["sequences"] = {str(c.tokens): _context(answer, c, put) for c in answer.contexts}
    else:
        for key in (
            "bytes_per_token",
            "device_bytes_per_token",
            "state_bytes_per_sequence",
            "layers",
            "engine",
            "sequences",
        ):
            put(told, key, layout)
    put(told, "weights_bytes", weights.bytes if known(weights) else weights)
    put(told, "device_weights_bytes", answer.deployment.device_weights_bytes)
    if known(weights):
        told["weights"] = {
            "source": str(weights.source),
            "estimated": weights.estimated,
            "how": weights.how,
            **({"parameters": weights.parameters} if known(weights.parameters) else {}),
            **({"active_parameters": weights.active_parameters} if known(weights.active_parameters) else {}),
        }
    put(told, "pool_bytes", pool.replica_bytes if known(pool) else pool)
    put(told, "device_pool_bytes", pool.device_bytes if known(pool) else pool)
    put(told, "pool_blocks", pool.blocks if known(pool) else pool)
    put(told, "live_tokens", pool.live_tokens if known(pool) else pool)
    put(told, "longest_max_model_len", answer.longest_served)
    put(told, "fits", answer.fits)
    told["remedies"] = [
        {"context": r.tokens, "remedy": str(r.kind), "change": r.change, "fit": r.fit, "fits": r.fits}
        for r in remedies(answer)
    ]
    told["unavailable"] = missing
    return told


def number(value: Fraction) -> int | float:
    """Exact where it is whole; records that tokens share (DeepSeek V4) make it a fraction."""
    return value.numerator if value.denominator == 1 else float(value)


def _put_model(answer: Answer, told: dict[str, Any], put: Any) -> None:
    asked, shape = answer.question, answer.shape
    if known(shape):
        told["model"] = {"model_type": shape.model_type, "attention": shape.attention}
    put(told, "max_model_len", answer.max_model_len)
    machine = asked.machine
    told["hardware"] = {
        "gpu": machine.name,
        "gpus": machine.gpus,
        "replicas": machine.replicas,
        "gpus_per_replica": machine.parallelism.gpus,
        "gpu_memory_bytes": machine.memory_bytes,
        "gpu_memory_utilization": asked.utilization,
        "overhead_bytes_per_gpu": asked.overhead_bytes,
    }
    put(told["hardware"], "bandwidth_bytes_per_second", machine.bandwidth_bytes_per_second, "decode_floor")


def _engine(layout: EngineLayout) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": layout.engine,
        "kv_cache_dtype": layout.cache_dtype,
        "block_size": layout.block_tokens,
        "bytes_per_block": layout.block_bytes,
        "reserved_blocks": layout.reserved_blocks,
    }
    if isinstance(layout.blocks, BlockLayout):
        told["groups"] = [
            {
                "kind": str(group.kind),
                "layers": group.layers,
                "window_tokens": group.window_tokens,
                "block_size": group.block_tokens,
                "page_bytes": group.page_bytes,
            }
            for group in layout.blocks.groups
        ]
    else:
        told["groups"] = [
            {"kind": "pool", "block_size": layout.block_tokens, "page_bytes": layout.block_bytes}
        ]
    return told


def _context(answer: Answer, context: ContextPlan, put: Any) -> dict[str, Any]:
    layout, asked = answer.layout, answer.question
    told: dict[str, Any] = {
        "bytes": context.resident_bytes,
        "peak_bytes": context.peak_bytes,
        "admission_bytes": context.admission_bytes,
        "blocks": list(context.group_blocks),
        "peak_blocks": context.peak_blocks,
        "beyond_model": answer.beyond(context),
    }
    put(told, "fit", context.fit, "sequences.fit")
    put(told, "fits", answer.fits_at(context), "sequences.fits")
    if asked.machine.replicas > 1 and known(context.fit):
        told["fit_all_replicas"] = context.fit * asked.machine.replicas
    if asked.sequences and known(layout):
        told["total_bytes"] = asked.sequences * context.peak_blocks * layout.replica_block_bytes
    if asked.shared_prefix_tokens and known(layout):
        told["shared_prefix_tokens"] = context.sharing.prefix_tokens
        put(told, "fit_shared", context.fit_sharing, "sequences.fit")
        if asked.sequences:
            blocks = context.sharing.blocks(asked.sequences)
            told["total_bytes_shared"] = blocks * layout.replica_block_bytes
    if known(asked.price_per_hour):
        put(told, "cost_dollars_per_hour", context.cost_per_hour, "sequences.cost_dollars_per_hour")
    if known(asked.machine.bandwidth_bytes_per_second):
        floor = context.floor
        put(told, "decode_floor", _floor(floor) if known(floor) else floor, "decode_floor")
    return told


def _floor(floor: DecodeFloor) -> dict[str, Any]:
    return {
        "sequences": floor.sequences,
        "weights_seconds": floor.weights_seconds,
        "sequence_seconds": floor.sequence_seconds,
        "cache_seconds": floor.cache_seconds,
        "seconds": floor.seconds,
    }
