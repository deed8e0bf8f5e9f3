"""What a sequence costs: its share of the pool at the target's price."""

from __future__ import annotations

import pytest

from exporter import catalogue as c
from exporter.collect import families
from exporter.settings import TargetSettings
from exporter.target import TargetState

# Two data-parallel ranks of 1,000 blocks of 16 tokens each; num_gpu_blocks is their sum.
PAGE = "\n".join(
    line
    for rank in ("0", "1")
    for line in (
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="2000",engine="{rank}"}} 1',
        f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="m"}} 0',
    )
)


def costs(price_per_hour: float | None) -> dict[tuple[str, str], float]:
    settings = TargetSettings(url="http://127.0.0.1:1", name="t", bytes_per_token=1000.0)
    state = TargetState(settings, [4096], 1.0)
    state.price_per_hour = price_per_hour
    state.accept(state.read(PAGE), 0.0)
    return {
        (s.labels["engine"], s.labels["context"]): s.value
        for family in families([state])
        for s in family.samples
        if s.name == c.SEQUENCE_COST.name
    }


def test_a_sequences_share_is_of_all_ranks_pools() -> None:
    """256 blocks of 2 x 1,000 are 12.8 % of a target of 10 dollars an hour: 1.28."""
    assert costs(10.0) == {("0", "4096"): pytest.approx(1.28), ("1", "4096"): pytest.approx(1.28)}


def test_without_a_price_there_is_no_cost() -> None:
    """Absent, not 0."""
    assert costs(None) == {}
