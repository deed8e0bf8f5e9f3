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


def test_every_reason_in_the_troubleshooting_table_exists() -> None:
    """People search the table for the word in the label."""
    named = set(re.findall(r"reason `([a-z_]+)`", README.read_text()))
    assert len(named) > 5
    assert named <= {reason.value for reason in Reason}
