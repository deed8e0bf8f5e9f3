"""One scrape of the exporter, read with prometheus_client's own parser."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

ERRORS = "kvcache_exporter_errors_total"
DROPPED = "kvcache_exporter_dropped_samples_total"


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one scrape."""

    samples: tuple[Sample, ...]

    @classmethod
    def parse(cls, text: str) -> Page:
        """Read the text format; raises ValueError where it is malformed."""
        return cls(tuple(s for family in text_string_to_metric_families(text) for s in family.samples))

    def all(self, name: str, **labels: str) -> list[Sample]:
        """Every sample of that name which carries at least these labels."""
        return [
            s for s in self.samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of :meth:`all`."""
        return [float(s.value) for s in self.all(name, **labels)]

    def value(self, name: str, **labels: str) -> float:
        """The value of the only such sample; raises LookupError if there is none or more than one."""
        found = self.values(name, **labels)
        if len(found) != 1:
            raise LookupError(f"{len(found)} samples of {name}{labels}, expected one")
        return found[0]

    def reasons(self, counter: str, target: str) -> dict[str, float]:
        """The reasons of :data:`ERRORS` or :data:`DROPPED` that occurred, with their counts."""
        return {s.labels["reason"]: s.value for s in self.all(counter, target=target) if s.value}

    def series(self, target: str) -> frozenset[tuple[str, frozenset[tuple[str, str]]]]:
        """Names and label sets of one target's series."""
        return frozenset(
            (s.name, frozenset(s.labels.items())) for s in self.samples if s.labels.get("target") == target
        )

    def why_missing(self, target: str) -> dict[str, str]:
        """Signal -> reason, as the exporter itself says it."""
        return {
            s.labels["signal"]: s.labels["reason"]
            for s in self.all("kvcache_exporter_unavailable", target=target)
        }
