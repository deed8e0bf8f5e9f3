"""Everything known about one engine rank at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter import catalogue
from exporter.catalogue import Metric
from exporter.derive.inputs import Inputs
from exporter.engines.sample import EngineSample
from exporter.kvmath.known import Reason, Unavailable, known

# No figure is near it (the largest are bytes of a pool), and any number below it is a float.
LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Figure:
    """One series value; ``labels`` are those beyond the rank's own."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the explanation: what, how, and the result."""

    name: str
    formula: str
    result: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sources disagree about an input; ``used`` is taken."""

    input: str
    used: str
    other: str
    detail: str


@dataclass(frozen=True, slots=True)
class Readout:
    """The derived figures of one rank, the missing ones, and how they came about."""

    sample: EngineSample
    inputs: Inputs
    figures: tuple[Figure, ...]
    missing: Mapping[Metric, Unavailable]
    steps: tuple[Step, ...]
    contradictions: tuple[Contradiction, ...]
    info: Mapping[str, str] = field(default_factory=dict)


class Notebook:
    """Collects figures while a readout is derived."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.missing: dict[Metric, Unavailable] = {}
        self.steps: list[Step] = []
        self.contradictions: list[Contradiction] = []

    def put(self, metric: Metric, value: float | Unavailable, **labels: str) -> None:
        """A figure, or the reason why there is none (the first reason stays)."""
        if known(value) and not 0 <= value < LARGEST:
            # Sums of absurd counters on a page; a figure must never be NaN, infinite or negative.
            value = Unavailable(Reason.OUT_OF_RANGE, "no such number of anything")
        if known(value):
            self.figures.append(Figure(metric, float(value), labels))
        else:
            self.missing.setdefault(metric, value)

    def per_sequence(self, used_tokens: int | Unavailable, running: int | Unavailable) -> None:
        """Tokens of the average running sequence; none while nothing runs."""
        if known(used_tokens) and known(running):
            idle = Unavailable(Reason.IDLE, "no sequence runs")
            self.put(catalogue.TOKENS_PER_SEQUENCE, used_tokens / running if running else idle)
        else:
            self.put(catalogue.TOKENS_PER_SEQUENCE, running if known(used_tokens) else used_tokens)

    def show(self, name: str, formula: str, result: object, unit: str = "") -> None:
        """A step of the explanation."""
        if isinstance(result, Unavailable):
            self.steps.append(Step(name, formula, f"not known, {result.reason}: {result.detail}"))
        else:
            self.steps.append(Step(name, formula, f"{result}", unit))

    def disagree(self, what: str, used: str, other: str, detail: str) -> None:
        self.contradictions.append(Contradiction(what, used, other, detail))
