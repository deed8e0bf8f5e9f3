"""A /metrics page, read with the library Prometheus' own clients use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one scrape."""

    samples: tuple[Sample, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text format; raises ValueError where it is malformed."""
        return cls(tuple(s for family in text_string_to_metric_families(text) for s in family.samples))

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

    def total(self, name: str, **labels: str) -> float:
        """The sum over all such samples; raises LookupError if there is none."""
        found = self.all(name, **labels)
        if not found:
            raise LookupError(f"no sample of {name}{labels}")
        return float(sum(s.value for s in found))
