"""Every config SGLang 0.5.23 reads by itself, against what its own pool configurator makes of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.model import read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools, token_pools
from exporter.kvmath.sglang_budget import divide

DATA = Path(__file__).parents[2] / "data" / "kv"
ENGINE = [json.loads(line) for line in (DATA / "sglang_engine.jsonl").read_text().splitlines()]


@dataclass(frozen=True)
class Variant:
    """How the engine was asked, and how many of its answers we have and withhold."""

    right: int
    withheld: int
    dtype: str = "bfloat16"
    parallelism: Parallelism = field(default_factory=Parallelism)
    page: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)


# Withheld everywhere: T5 (no model of SGLang), MiniCPM3 (its latent is not in the shape), Gemma 4 E2B (which
# pool its sharing layers are in is not).  Beside them: heads that don't spread over the ranks (on 8 three,
# in 4 or 2 groups likewise), dtypes the sparse attention refuses, contexts shared beside windows or states.
VARIANTS = {
    "none": Variant(119, 3),
    "tp8": Variant(116, 6, parallelism=Parallelism(8)),
    "fp8": Variant(119, 3, "fp8_e4m3"),
    "raw_fp8": Variant(10, 0, "fp8_e4m3", more={"raw_latent": True}),
    "mxfp8": Variant(109, 13, "mxfp8"),
    "nvfp4": Variant(9, 11, "nvfp4"),
    "dcp2": Variant(90, 32, parallelism=Parallelism(8, 1, 2)),
    "pp4": Variant(116, 6, parallelism=Parallelism(2, 4)),
    "mtp": Variant(14, 5, more={"speculative": "mtp"}),
    "tokens": Variant(119, 3, page=64),
}


def ours(row: Mapping[str, Any], variant: Variant) -> TokenPools | Unavailable:
    shape = read_model(json.loads((DATA / "configs" / f"{row['config']}.json").read_text()))
    if not known(shape):
        return shape
    return token_pools(shape, variant.dtype, variant.page, variant.parallelism, **variant.more)


def answers(name: str) -> list[tuple[str, TokenPools, Any]]:
    """Ours beside the engine's, and the count of each as the table above says."""
    variant, found, count = VARIANTS[name], [], Counter[str]()
    for row in ENGINE:
        if name not in row:
            continue
        pools = ours(row, variant)
        count["right" if known(pools) else "withheld"] += 1
        if known(pools):
            found.append((row["config"], pools, row[name]))
    assert (count["right"], count["withheld"]) == (variant.right, variant.withheld)
    return found


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("pp4", "tokens")])
def test_bytes_of_a_slot(name: str) -> None:
    """Token slot, window slot and state slot of one GPU, to the byte."""
    tensor, shared = VARIANTS[name].parallelism.tensor, VARIANTS[name].parallelism.decode_context
    for config, pools, engine in answers(name):
        assert [pools.full_token_bytes, pools.window_token_bytes, pools.state_bytes] == engine, config
        assert pools.replica_full_token_bytes == tensor * engine[0], config
        assert pools.bytes_per_token * shared == tensor * engine[0], config


def test_pipeline_stages() -> None:
    """Four stages of two ranks: the largest decides, the replica is all of them."""
    for config, pools, engine in answers("pp4"):
        stages = list(zip(*engine, strict=True))
        largest = [pools.full_token_bytes, pools.window_token_bytes, pools.state_bytes]
        assert largest == [max(stage) for stage in stages], config
        replica = [
            pools.replica_full_token_bytes,
            pools.replica_window_token_bytes,
            pools.replica_state_bytes,
        ]
        assert replica == [2 * sum(stage) for stage in stages], config


def test_tokens_of_a_budget() -> None:
    """10^10 bytes in pages of 64; the engine divides what the states leave, which it was not asked for."""
    tried = 0
    for config, pools, engine in answers("tokens"):
        if pools.state_bytes:
            continue
        sizes = divide(pools, 10**10)
        assert sizes is not None, config
        assert [sizes.full_tokens, sizes.window_tokens] == engine, config
        tried += 1
    assert tried == 100
