"""Figures set by hand: a layout of their own."""

import pytest

from exporter.kvmath.blocks import BlockLayout
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind
from exporter.kvmath.overrides import Override
from exporter.kvmath.parallel import Parallelism


def laid_out(override: Override, tensor: int = 1) -> BlockLayout:
    layout = override.layout(16, Parallelism(tensor))
    assert isinstance(layout, BlockLayout), layout
    return layout


def test_bytes_per_token_alone() -> None:
    """131,072 bytes on 4 GPUs: 32,768 on each, blocks of 16; the figure is named."""
    layout = laid_out(Override(bytes_per_token=131_072), 4)
    assert layout.bytes_per_token == 131_072
    assert layout.device_bytes_per_token == 32_768
    assert layout.block_bytes == 16 * 32_768
    assert layout.replica_block_bytes == 16 * 131_072
    assert layout.single_full_group
    assert layout.overridden == ("bytes_per_token",)


def test_a_window() -> None:
    """Only 128 tokens are kept: 9 blocks of 16 at most, and a longer context costs nothing more."""
    layout = laid_out(Override(bytes_per_token=100, window_tokens=128))
    assert layout.bytes_per_token == 0
    assert layout.peak_blocks(100_000) == 9
    assert layout.overridden == ("bytes_per_token", "window_tokens")


def test_a_state_beside_tokens_raises_the_block() -> None:
    """1,000,000 bytes of state / (16 x 1,000) = 62.5: blocks of 63 x 16 = 1,008 tokens, 1,008,000 bytes."""
    layout = laid_out(Override(bytes_per_token=1000, state_bytes_per_sequence=1_000_000))
    assert layout.block_tokens == 1008
    assert layout.block_bytes == 1_008_000
    assert layout.state_bytes_per_sequence == layout.device_state_bytes_per_sequence == 1_000_000
    assert [group.kind for group in layout.groups] == [Kind.FULL, Kind.STATE]
    assert layout.resident_blocks(1008) == 2


def test_a_state_alone() -> None:
    """Three GPUs share 100 bytes: 34 on each, rounded up."""
    layout = laid_out(Override(state_bytes_per_sequence=100), 3)
    assert (layout.block_bytes, layout.replica_block_bytes, layout.bytes_per_token) == (34, 102, 0)
    assert layout.resident_blocks(10) == 1


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (Override(), "bytes_per_token"),
        (Override(bytes_per_token=-1), "bytes_per_token"),
        (Override(bytes_per_token=float("nan")), "bytes_per_token"),
        (Override(bytes_per_token=float("inf")), "bytes_per_token"),
        (Override(bytes_per_token=1, state_bytes_per_sequence=-1), "state_bytes_per_sequence"),
        (Override(bytes_per_token=1, window_tokens=0), "window_tokens"),
        (Override(state_bytes_per_sequence=1, window_tokens=8), "window_tokens"),
    ],
)
def test_figures_that_make_no_cache(override: Override, named: str) -> None:
    """Refused, and the setting is named."""
    found = override.layout(16, Parallelism())
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.BAD_MODEL_CONFIG
    assert named in found.detail
