"""The README repeats facts whose home is the code; it must not drift."""

from __future__ import annotations

import re
from pathlib import Path

from exporter import catalogue
from exporter.docs import with_tables
from exporter.kvmath.known import Reason

README = Path(__file__).parents[2] / "README.md"


def test_generated_tables_are_current() -> None:
    """`make docs` was run after the last change of a metric or a setting."""
    text = README.read_text()
    assert with_tables(text) == text


def test_every_series_named_in_prose_exists() -> None:
    """A renamed metric must not live on in a query that people copy."""
    known = {metric.name for metric in catalogue.CATALOGUE}
    suffixes = ("_bucket", "_count", "_sum")
    named = set(re.findall(r"\bkvcache_[a-z_]+", README.read_text()))
    assert named
    unknown = {
        name
        for name in named
        if name not in known and not any(name.removesuffix(suffix) in known for suffix in suffixes)
    }
    assert not unknown


def test_every_reason_is_in_the_troubleshooting_table() -> None:
    """People search the table for the word in the label."""
    rows = [line for line in README.read_text().splitlines() if line.startswith("| ")]
    named = {word for row in rows for word in re.findall(r"`([a-z_]+)`", row.split("|")[1])}
    inputs = {"block_size", "kv_cache_dtype", "max_model_len", "pipeline_parallel_size", "no_engine_families"}
    # Those tell by their name which input is missing; all others are explained.
    assert {reason.value for reason in Reason} - inputs <= named
