"""What an examination found: plain data, the same for text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Weight(StrEnum):
    """How much an advice matters."""

    PROBLEM = "problem"  # figures are missing altogether, or can't be trusted
    BETTER = "better"  # series would come
    OPTIONAL = "optional"  # finer, or beside our subject


class Where(StrEnum):
    """Who is to be started with the flag."""

    ENGINE = "engine"
    EXPORTER = "exporter"
    NONE = ""  # no flag: something to look at


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do: the exact flag, what it unlocks, and why."""

    weight: Weight
    where: Where
    why: str
    flag: str = ""
    environment: str = ""
    unlocks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """One of our series; ``reason`` and ``detail`` are empty where it is available."""

    name: str
    available: bool
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Where config.json was found, or why it is of no use."""

    found: bool
    source: str
    location: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one poll costs.  ``share``: of the interval in force, which stretches with slow pages."""

    bytes: int
    seconds: float
    poll_interval_seconds: float
    share: float
    heavy: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Everything found.  ``reachable``: something answered; ``failure`` is empty where the page was read;
    ``arithmetic_ratio`` is None where there is nothing to compare."""

    target: str
    reachable: bool
    engine: str
    version: str
    model_names: tuple[str, ...] = ()
    ranks: int = 0
    failure: str = ""
    failure_detail: str = ""
    signals: tuple[Signal, ...] = ()
    model_config: ModelConfig | None = None
    arithmetic_ratio: float | None = None
    arithmetic_agrees: bool | None = None
    assumed: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    scrape: Scrape | None = None
    advice: tuple[Advice, ...] = ()

    def exit_code(self, *, strict: bool) -> int:
        """0 fine, 1 problems; with ``strict`` also where an advice is more than optional."""
        weights = {advice.weight for advice in self.advice}
        return int(Weight.PROBLEM in weights or (strict and Weight.BETTER in weights))


def as_dict(report: Report) -> dict[str, Any]:
    """For programs; keys are only ever added."""
    config, scrape = report.model_config, report.scrape
    return {
        "target": report.target,
        "reachable": report.reachable,
        "failure": report.failure or None,
        "failure_detail": report.failure_detail or None,
        "engine": report.engine or None,
        "version": report.version or None,
        "model_names": list(report.model_names),
        "ranks": report.ranks,
        "signals": [
            {
                "signal": s.name,
                "available": s.available,
                "reason": s.reason or None,
                "detail": s.detail or None,
            }
            for s in report.signals
        ],
        "model_config": None
        if config is None
        else {
            "found": config.found,
            "source": config.source if config.found else None,
            "location": config.location or None,
            "problem": config.problem or None,
        },
        "arithmetic": {"ratio": report.arithmetic_ratio, "agrees": report.arithmetic_agrees},
        "assumed": list(report.assumed),
        "contradictions": list(report.contradictions),
        "scrape": None
        if scrape is None
        else {
            "bytes": scrape.bytes,
            "seconds": scrape.seconds,
            "poll_interval_seconds": scrape.poll_interval_seconds,
            "share": scrape.share,
            "heavy": scrape.heavy,
        },
        "advice": [
            {
                "weight": a.weight,
                "where": a.where or None,
                "flag": a.flag or None,
                "environment": a.environment or None,
                "unlocks": list(a.unlocks),
                "why": a.why,
            }
            for a in report.advice
        ],
    }
