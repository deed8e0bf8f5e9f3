"""The decode floor: what a step must read, over what the GPUs can read."""

from __future__ import annotations

import pytest

from exporter.kvmath.known import Reason, Unavailable, known
from exporter.requests.floor import decode_floor_seconds, gpu_bytes_per_second, over_floor

MISSING = Unavailable(Reason.MODEL_WEIGHTS, "none")


def test_one_gpu() -> None:
    """16 GB of weights and 4 GB of live cache over 2 TB/s: 10 ms a step."""
    assert decode_floor_seconds(16e9, 4e9, 2e12) == pytest.approx(0.010)


def test_tensor_ranks_read_together() -> None:
    """140 GB and 20 GB over 4 x 4 TB/s: 160e9 / 16e12 = 10 ms."""
    assert decode_floor_seconds(140e9, 20e9, 4e12, tensor_ranks=4) == pytest.approx(0.010)


def test_stages_of_a_pipeline_read_in_turn() -> None:
    """Two stages of 8 GB one after the other are 16 GB; each has half the sequences' cache to read."""
    assert decode_floor_seconds(16e9, 4e9, 2e12, pipeline_ranks=2) == pytest.approx((16e9 + 2e9) / 2e12)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((MISSING, 1, 1e12), Reason.MODEL_WEIGHTS),
        ((1, Unavailable(Reason.BLOCK_SIZE), 1e12), Reason.BLOCK_SIZE),
        ((MISSING, 1, Unavailable(Reason.GPU_BANDWIDTH)), Reason.GPU_BANDWIDTH),
        ((1, 1, 1e12, Unavailable(Reason.TENSOR_PARALLEL_SIZE)), Reason.TENSOR_PARALLEL_SIZE),
        ((1, 1, 1e12, 1, Unavailable(Reason.PIPELINE_PARALLEL_SIZE)), Reason.PIPELINE_PARALLEL_SIZE),
        ((0, 1, 1e12), Reason.OUT_OF_RANGE),
        ((1, -1, 1e12), Reason.OUT_OF_RANGE),
        ((1, 1, 1e12, 0), Reason.OUT_OF_RANGE),
    ],
)
def test_without_an_input_there_is_no_floor(
    arguments: tuple[float | Unavailable, ...], reason: Reason
) -> None:
    """The reason is the missing input's, so that one can tell what to set."""
    found = decode_floor_seconds(*arguments)  # type: ignore[arg-type]  # counts of ranks among floats
    assert isinstance(found, Unavailable)
    assert found.reason is reason


def test_the_ratio() -> None:
    """20 ms observed over 10 ms at least is 2; without a token or a floor there is none."""
    assert over_floor(0.020, 0.010) == pytest.approx(2.0)
    idle = over_floor(None, 0.010)
    assert isinstance(idle, Unavailable)
    assert idle.reason is Reason.IDLE
    assert over_floor(0.020, MISSING) is MISSING


@pytest.mark.parametrize(("said", "bytes_per_second"), [("3.35e12", 3.35e12), ("h100", 3.35e12)])
def test_bandwidth_is_a_number_or_a_gpu(said: str, bytes_per_second: float) -> None:
    """H100 SXM: 3.35 TB/s in its data sheet."""
    assert gpu_bytes_per_second(said) == bytes_per_second


@pytest.mark.parametrize("said", [None, "", "abacus", "-1", "0", "nan", "inf", "1e20"])
def test_what_is_no_bandwidth(said: str | None) -> None:
    """Missing, unknown or impossible: no floor, never a wrong one."""
    found = gpu_bytes_per_second(said)
    assert not known(found)
    assert found.reason is Reason.GPU_BANDWIDTH
