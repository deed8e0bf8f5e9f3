"""Every alert meets every situation, in a case or with the reason why it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import pytest

from .promtool import specs


def _states(case: Mapping[str, Any]) -> str:
    """All that the case expects of the alert, in one text."""
    return " ".join(case.get("expect", {}).values())


def _series(case: Mapping[str, Any]) -> list[str]:
    """The engine's and the exporter's series, without thresholds of the user's."""
    named = [*case.get("series", {}), *case.get("histograms", {})]
    return [name for name in named if "alert_threshold" not in name]


def _values(case: Mapping[str, Any]) -> list[str]:
    return list(case.get("series", {}).values())


def _pods(case: Mapping[str, Any]) -> set[str]:
    """Pods by name; what is said of no pod is the first one's."""
    return {found[1] if (found := re.search(r'pod="([^"]*)"', name)) else "vllm-0" for name in _series(case)}


def _goes_back(values: str) -> bool:
    """Whether a series that rose begins anew: its second run starts below where the first one ended."""
    runs = [
        (float(start), float(start) + float(step) * int(times))
        for start, step, times in re.findall(r"([\d.]+)\+([\d.]+)x(\d+)", values)
    ]
    return any(later < ended for (_, ended), (later, _) in pairwise(runs))


# A situation, and what a case must have at the least to be one.
SITUATIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "fires": lambda case: "firing" in _states(case),
    "just below": lambda case: set(case["expect"].values()) == {"quiet"},
    "for not over": lambda case: "pending" in _states(case),
    "no traffic": lambda case: set(case["expect"].values()) == {"quiet"},
    "series vanish": lambda case: any("stale" in values for values in _values(case)),
    # Counters begin anew, or what is no counter goes away and comes back.
    "restart": lambda case: any(
        _goes_back(values) or re.search(r"(stale|\b0\b.*|_).* [1-9]", values) for values in _values(case)
    ),
    "both engines": lambda case: any("sglang" in pod for pod in _pods(case)) and len(_pods(case)) > 1,
    "data-parallel ranks": lambda case: any('engine="1"' in name for name in _series(case)),
    "many pods": lambda case: len(_pods(case)) > 1 or len({*_series(case)}) > 3,
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("alert", sorted(specs()))
def test_situation_is_met(alert: str, situation: str) -> None:
    """A case that shows it, or one sentence that says why this alert cannot be in it."""
    spec = specs()[alert]
    told = spec["situations"][situation]
    if isinstance(told, dict):
        assert set(told) == {"not"}
        assert len(told["not"].split()) > 3
        return
    [case] = [case for case in spec["cases"] if case["name"] == told]
    assert SITUATIONS[situation](case), f"{told}: shows no such thing"


def test_situations_are_these() -> None:
    """A misspelt one would be looked for by nobody."""
    for alert, spec in specs().items():
        assert set(spec["situations"]) == set(SITUATIONS), alert
        # Most situations can come over any alert: leaving one out is the exception.
        assert sum(isinstance(told, dict) for told in spec["situations"].values()) <= 4, alert
