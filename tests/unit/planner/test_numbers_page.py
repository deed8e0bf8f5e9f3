"""The page that explains the numbers is held against the numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "exporter" / "planner" / "NUMBERS.md"
Plan = Callable[..., dict[str, Any]]


def examples() -> list[list[str]]:
    _, _, rest = PAGE.read_text().partition("<!-- examples -->")
    table, _, _ = rest.partition("<!-- examples: end -->")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_there_are_examples() -> None:
    """An empty table would pass every other test."""
    assert len(examples()) >= 18


@pytest.mark.parametrize("row", examples(), ids=lambda row: row[0])
def test_example(plan: Plan, row: list[str]) -> None:
    """Bytes of a token, of a state, and the peak at 131,072 tokens, as the table says."""
    _, model, token, state, peak = row
    told = plan(model, "--context 131072")
    assert f"{told['bytes_per_token']:,}" == token
    assert f"{told['state_bytes_per_sequence']:,}" == state
    assert f"{told['sequences']['131072']['peak_bytes']:,}" == peak
