"""Recorded series that no alert is made of, against promtool: their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from alerts.rules import groups, thresholds

from .promtool import run_case

_LABELS: Final = (
    '{job="kv",instance="10.0.0.1:9844",namespace="llm",pod="vllm-0",target="127.0.0.1:8000",'
    'model_name="llama",context="4096",source="log"}'
)
_OLD_S, _NEW_S = 1.5, 3.0


def _ttft(at: str, names: dict[str, dict[str, float]]) -> dict[str, Any]:
    """1.5 s on each of two routes until minute 200, 3 s after it; buckets end at 1, 2 and 4 s."""
    phases = [[200, {_OLD_S: 50}], [100, {_NEW_S: 50}]]
    one = {"bounds": [1, 2, 4], "phases": phases}
    return {
        "name": "ttft",
        "histograms": {
            f'kvcache_ttft_seconds{{context="4096",source="log",route="{route}"}}': one for route in "ab"
        },
        "values": {name: {"at": at, "samples": samples} for name, samples in names.items()},
    }


# By hand: all in one bucket, so p50 is its middle and p95 19 parts of 20 into it.
@pytest.mark.parametrize(
    ("at", "names"),
    [
        pytest.param(
            "190m",
            {
                "kvcache:ttft_seconds:p50_10m": 1.5,
                "kvcache:ttft_seconds:p95_10m": 1.95,
                "kvcache:ttft_seconds:mean_10m": 1.5,
            },
            id="before",
        ),
        pytest.param(
            "240m",
            {
                "kvcache:ttft_seconds:p50_10m": 3,
                "kvcache:ttft_seconds:p95_10m": 3.9,
                "kvcache:ttft_seconds:mean_10m": 3,
                # The last hour is no part of it.
                "kvcache:ttft_seconds:p95_baseline": 1.95,
                "kvcache:ttft_seconds:mean_baseline": 1.5,
            },
            id="after a doubling",
        ),
        pytest.param(
            "85m",
            {
                "kvcache:ttft_seconds:p95_baseline": None,
                "kvcache:ttft_seconds:mean_baseline": None,
            },
            id="no baseline of 25 samples",
        ),
    ],
)
def test_time_to_first_token(at: str, names: dict[str, float | None], tmp_path: Path) -> None:
    """Its baseline is the median of a day that ended an hour ago, as that of the inter-token latency."""
    assert thresholds()["ttft"]["baseline_min_samples"] == 30  # evaluated every minute here
    told = {name: {} if value is None else {name + _LABELS: value} for name, value in names.items()}
    done = run_case({"alert": "none", "cases": [_ttft(at, told)]}, groups(), tmp_path, "ttft")
    assert done.returncode == 0, done.stdout + done.stderr
