"""A /metrics page, read with the library Prometheus' own clients use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one scrape."""

    samples: tuple[Sample, ...]
    text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text format; raises ValueError where it is malformed."""
        families = text_string_to_metric_families(text)
        return cls(tuple(s for family in families for s in family.samples), text)

    def all(self, name: str, **labels: str) -> list[Sample]:
        """Every sample of that name which carries at least these labels."""
        return [
            s for s in self.samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        ]

    def one(self, name: str, **labels: str) -> Sample:
        """The only such sample; raises LookupError if there is none or more than one."""
        found = self.all(name, **labels)
        if len(found) != 1:
            near = [s for s in self.samples if s.name == name]
            raise LookupError(f"{len(found)} samples of {name}{labels}, expected one; of that name: {near}")
        return found[0]

    def value(self, name: str, **labels: str) -> float:
        """The value of the only such sample; raises LookupError like `one`."""
        return float(self.one(name, **labels).value)

    def maybe(self, name: str, **labels: str) -> float | None:
        """The value of the only such sample, None without one; raises LookupError where there are several."""
        return self.value(name, **labels) if self.all(name, **labels) else None

    def total(self, name: str, **labels: str) -> float:
        """The sum over all such samples; raises LookupError if there is none."""
        found = self.all(name, **labels)
        if not found:
            raise LookupError(f"no sample of {name}{labels}")
        return float(sum(s.value for s in found))
