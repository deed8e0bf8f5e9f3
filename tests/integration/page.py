"""One scrape of the exporter, and what it says about what went wrong."""

from __future__ import annotations

from tests.rig import page

ERRORS = "kvcache_exporter_errors_total"
DROPPED = "kvcache_exporter_dropped_samples_total"


class Page(page.Page):
    """A page of ours."""

    def values(self, name: str, **labels: str) -> list[float]:
        """The values of :meth:`all`."""
        return [float(s.value) for s in self.all(name, **labels)]

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
