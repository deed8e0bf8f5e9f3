"""A real checkpoint on a GPU, where one is named: KVCACHE_RIG_MODEL=/path/to/model.

There is no sum by hand for it: the engine's log, its tensors and the client are the truth.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from exporter import catalogue as c

from . import claims, load_figures, vllm_figures
from .checks import Figure, Ledger, Subject
from .engine import Engine
from .load import load, prompts
from .sidecar import Sidecar

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1800)]

# Enough for a few thousand tokens of most models, and little enough for any GPU that holds the weights.
POOL_BYTES = 2 * 2**30


def test_a_real_models_pool_is_the_engines(
    engine_python: Path, gpu: str | None, tmp_path: Path, ledger: Ledger
) -> None:
    """Tokens, blocks and bytes of the pool, finished requests, and nothing held afterwards."""
    named = os.environ.get("KVCACHE_RIG_MODEL")
    if not named:
        pytest.skip("no model was named (make rig GPU=1 MODEL=/path)")
    model = Path(named)
    engine = Engine(
        engine_python, model, tmp_path / "engine.log", kv_cache_bytes=POOL_BYTES, load_format="auto"
    )
    engine.measure_memory()
    sidecar = Sidecar(engine.url, tmp_path / "sidecar.log", ["--context", "4096"])

    async def scenario() -> None:
        async with load(engine.url, engine.model_name) as client:
            await client.start_together(prompts(1, [200] * 4), max_tokens=20)
            await client.finish()

    with sidecar, engine:
        sidecar.wait_listening()
        engine.wait_ready()
        sidecar.wait_up()
        checks = ledger.of(Subject("vllm", engine.version(), model.name, gpu))
        before, log = sidecar.scrape_fresh(), engine.capacity_line()
        checks.all(vllm_figures.memory(engine.memory(), before))
        checks.all(
            [
                Figure(claims.CAPACITY_TOKENS, log.kv_cache_tokens, before.maybe(c.CAPACITY_TOKENS.name)),
                Figure(claims.CAPACITY_BLOCKS, engine.num_blocks(), before.maybe(c.CAPACITY_BLOCKS.name)),
                Figure(claims.ARITHMETIC_RATIO, 1, before.maybe(c.ARITHMETIC_RATIO.name)),
            ]
        )
        asyncio.run(scenario())
        page = sidecar.scrape_fresh()
        checks.all(load_figures.finished(before, page, 4))
        checks.all(vllm_figures.counters(engine.scrape(), page))
        checks.check(claims.IDLE, expected=0, got=page.maybe(c.USED_BLOCKS.name))
