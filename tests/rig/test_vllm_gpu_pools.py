"""Pools as large as people have them, on a GPU: their size by every count there is, and nothing else.

The pools of test_vllm.py are small, so that they can be filled; the driver's count says nothing about those.
"""

from __future__ import annotations

import pytest

from . import vllm_figures
from .hardware import wants_gpu
from .stands import Stand
from .truth import LLAMA_GIBIBYTE, LLAMA_OVERRIDDEN, LLAMA_PROFILED

pytestmark = [
    pytest.mark.rig,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not wants_gpu(), reason="pools of 1 GiB and more, counted by a GPU's driver"),
]


@pytest.mark.parametrize(
    "stand", [LLAMA_GIBIBYTE, LLAMA_OVERRIDDEN, LLAMA_PROFILED], indirect=True, ids=lambda model: model.name
)
def test_a_big_pool_is_the_engines(stand: Stand) -> None:
    """By bytes, by an override of the blocks (its label then says other bytes), and by profiling."""
    page = stand.sidecar.scrape_fresh()
    log, engine, memory = stand.engine.capacity_line(), stand.engine.scrape(), stand.engine.memory()

    if stand.model.num_blocks:
        stand.checks.all(vllm_figures.capacity(stand.model, log, engine, page))
    else:
        stand.checks.all(vllm_figures.pool(log, engine, page))
    assert memory.tensor_bytes >= vllm_figures.DRIVER_SEES_BYTES
    stand.checks.all(vllm_figures.memory(memory, page))
