"""Figures that articles and vendors publish, with the sum behind each.

Llama 3.1 8B: 32 layers x 8 KV heads x 128 x (K and V) x 2 bytes = 131,072 bytes a token;
8,030,261,248 parameters = 16.06 GB.  70B: 80 layers, 327,680 bytes a token, 163,840 in
fp8; 70,553,706,496 parameters = 141.1 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

SMALL = "meta-llama__Llama-3.1-8B-Instruct"
LARGE = "meta-llama__Llama-3.1-70B-Instruct"
GIB = 2**30
Plan = Callable[..., dict[str, Any]]


def fits(told: dict[str, Any], *contexts: int) -> tuple[int, ...]:
    return tuple(told["sequences"][str(context)]["fit"] for context in contexts)


@pytest.mark.parametrize(
    ("config", "flags", "expected"),
    [
        # 80 x 0.92 - 16.06 = 57.54 GB; a sequence takes 1.0737, 4.295 and 17.18 GB: 53.6, 13.4, 3.3.
        (SMALL, "--gpu H100", (53, 13, 3)),
        # 141 x 0.92 - 16.06 = 113.66 GB: 105.9, 26.5, 6.6.
        (SMALL, "--gpu H200", (105, 26, 6)),
        # 2 x 141 x 0.92 - 141.11 = 118.33 GB; 2.684, 10.74 and 42.95 GB: 44.08, 11.02, 2.76.
        (LARGE, "--gpu H200 --gpus 2", (44, 11, 2)),
        # 141 x 0.92 - 70.55 = 59.17 GB; half of the bytes: 44.08, 11.02, 2.76 again.
        (LARGE, "--gpu H200 --weights-dtype fp8 --kv-cache-dtype fp8", (44, 11, 2)),
    ],
)
def test_sequences_per_context(plan: Plan, config: str, flags: str, expected: tuple[int, ...]) -> None:
    """Sequences of 8,192, 32,768 and 131,072 tokens at a utilisation of 0.92."""
    told = plan(config, f"{flags} --gpu-memory-utilization 0.92")
    assert fits(told, 8192, 32768, 131072) == expected


def test_a_shared_prompt(plan: Plan) -> None:
    """32 users with 16K of prompt in common and 4K of their own, 70B.

    Apart: 32 x 20,480 x 327,680 = 200 GiB.  Together: 16,384 tokens once, 5 GiB, and
    32 x 4,096 tokens, 40 GiB.
    """
    told = plan(LARGE, "--gpu H200 --gpus 4 --context 20480 --sequences 32 --shared-prefix 16384")
    context = told["sequences"]["20480"]
    assert context["total_bytes"] == 200 * GIB
    assert context["total_bytes_shared"] == 45 * GIB
    assert round(context["total_bytes"] / context["total_bytes_shared"], 1) == 4.4


@pytest.mark.parametrize(
    ("context", "sequence_ms", "cache_ms"),
    [
        (8192, 0.32, 10.3),  # 1.0737 GB / 3.35 TB/s = 0.3205 ms; x 32 = 10.26 ms
        (131072, 5.13, 164),  # 17.18 GB / 3.35 TB/s = 5.128 ms; x 32 = 164.1 ms
    ],
)
def test_decode_floor(plan: Plan, context: int, sequence_ms: float, cache_ms: float) -> None:
    """An H100 reads 3.35 TB/s: 16.06 GB of weights take 4.79 ms, each cache its bytes over the bandwidth."""
    told = plan(SMALL, f"--gpu H100 --context {context} --sequences 32")
    floor = told["sequences"][str(context)]["decode_floor"]
    assert round(floor["weights_seconds"] * 1000, 1) == 4.8
    assert round(floor["sequence_seconds"] * 1000, 2) == sequence_ms
    assert floor["cache_seconds"] * 1000 == pytest.approx(cache_ms, rel=0.005)
    assert floor["seconds"] == pytest.approx(floor["weights_seconds"] + floor["cache_seconds"])


def test_two_h100_without_a_margin(plan: Plan) -> None:
    """160 GB hold 140 GB of 16-bit weights and 14 sequences of 4,096, or 70 GB in fp8 and 134.

    20 GB / (4,096 x 327,680 = 1.342 GB) = 14.9; 90 GB / 0.671 GB = 134.1.  Articles say 15
    and 137, for they call 320 KiB 0.32 MB: 20 / 1.311 = 15.3 and 90 / 0.655 = 137.3.
    """
    machine = "--gpu H100 --gpus 2 --gpu-memory-utilization 1 --context 4096"
    assert fits(plan(LARGE, f"{machine} --weights-gb 140"), 4096) == (14,)
    assert fits(plan(LARGE, f"{machine} --weights-gb 70 --kv-cache-dtype fp8"), 4096) == (134,)
    assert [int(20e9 / (4096 * 320e3)), int(90e9 / (4096 * 160e3))] == [15, 137]


def test_a_pool_of_70_gb(plan: Plan) -> None:
    """70 GB / 163,840 = 427,246 tokens; 104.3 sequences of 4,096, 13.04 of 32,768, 3.26 of 131,072."""
    told = plan(
        LARGE,
        "--gpu-memory-gb 70 --gpu-memory-utilization 1 --weights-gb 0 --kv-cache-dtype fp8",
    )
    assert told["pool_bytes"] == 70 * 10**9
    assert told["live_tokens"] == 427_246
    assert fits(told, 4096, 32768, 131072) == (104, 13, 3)


def test_price_of_a_seat(plan: Plan) -> None:
    """85 GB at 6 dollars an hour: 6 x 0.6711 / 85 = 0.047 for 4,096 tokens, 32 times that for 131,072."""
    told = plan(
        LARGE,
        "--gpu-memory-gb 85 --gpu-memory-utilization 1 --weights-gb 0 --kv-cache-dtype fp8 "
        "--price-per-hour 6",
    )
    short, long = (told["sequences"][str(n)]["cost_dollars_per_hour"] for n in (4096, 131072))
    assert round(short, 3) == 0.047
    assert round(long, 2) == 1.52
    assert long / short == pytest.approx(32)


def test_price_is_for_all_gpus_together(plan: Plan) -> None:
    """The same 85 GB in two GPUs of 80 GB with 70 GB of weights and 2.5 GB of overhead each."""
    told = plan(
        LARGE,
        "--gpu H100 --gpus 2 --gpu-memory-utilization 1 --weights-gb 70 --overhead-gb 2.5 "
        "--kv-cache-dtype fp8 --price-per-hour 6",
    )
    assert told["pool_bytes"] == 85 * 10**9
    assert round(told["sequences"]["131072"]["cost_dollars_per_hour"], 2) == 1.52


def test_gb_and_gib(plan: Plan, page: Any) -> None:
    """Ten 70B sequences of 131,072 tokens: 10 x 131,072 x 327,680 = 429,496,729,600 bytes."""
    flags = "--gpu H200 --gpus 8 --context 131072 --sequences 10"
    assert plan(LARGE, flags)["sequences"]["131072"]["total_bytes"] == 429_496_729_600
    assert "429.50 GB (400.00 GiB)" in page(LARGE, flags)
