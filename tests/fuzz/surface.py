"""What must hold of the exporter's own page, whatever went in."""

from __future__ import annotations

import json
import math

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.collect import registry
from exporter.explain import as_dict, as_text
from exporter.landing import page
from exporter.target import TargetState

# Some ten times a full page of one rank; a hostile engine may have 256 ranks.
MAX_SERIES_PER_RANK = 2_000
MAX_LABEL_CHARS = 512


def check(state: TargetState) -> None:
    """Its page can be parsed, values are numbers of things, labels bounded; pages for people are made."""
    told = generate_latest(registry(lambda: [state], lambda: 0.0)).decode()  # UTF-8, or this raises
    series = 0
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            if not sample.name.startswith("kvcache_"):
                continue
            series += 1
            assert math.isfinite(sample.value), sample
            assert sample.value >= 0, sample
            assert all(len(value) <= MAX_LABEL_CHARS for value in sample.labels.values()), sample
    assert series <= MAX_SERIES_PER_RANK * max(1, len(state.readouts))
    as_text(state).encode()
    page([state]).encode()
    json.dumps(as_dict(state), allow_nan=False).encode()
