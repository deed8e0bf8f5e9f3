"""What a catalogue entry is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "kvcache_"
# Labels that name one engine rank; empty ones are left out of a series.
RANK = ("target", "model_name", "engine", "replica")


class Group(StrEnum):
    """Headings of the metric table."""

    IDENTITY = "Identity"
    COST = "What a token costs"
    POOL = "The pool"
    SEQUENCES = "Sequences"
    PRESSURE = "Pressure"
    PREFIX_CACHE = "Prefix cache"
    LATENCY = "Latency by context"
    HELD = "Who holds the cache"
    MONEY = "Money"
    TRUST = "Trust"
    OURSELVES = "The exporter itself"


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported family; ``source`` says whose figure it is."""

    name: str
    kind: str  # gauge | counter | histogram
    group: Group
    labels: tuple[str, ...]
    help: str
    source: str

    @property
    def signal(self) -> str:
        """The word for this metric in the ``signal`` label: its own name."""
        return self.name


CATALOGUE: list[Metric] = []


def metric(
    kind: str,
    name: str,
    group: Group,
    extra: tuple[str, ...],
    help_text: str,
    source: str,
    *,
    rank: bool = True,
) -> Metric:
    """Make an entry; ``extra`` labels go behind the rank's own (or the target's)."""
    made = Metric(PREFIX + name, kind, group, (*(RANK if rank else ("target",)), *extra), help_text, source)
    CATALOGUE.append(made)
    return made
