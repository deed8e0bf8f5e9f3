"""deploy/SECURITY.md promises tests; each must be there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "deploy" / "SECURITY.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_named_exists() -> None:
    """A threat whose test was renamed or removed is a threat without one."""
    text = PAGE.read_text()
    named = NAMED.findall(text)
    assert len(named) > 50
    missing = [f"{file}::{name}" for file, name in named if name not in functions_of(ROOT / file)]
    assert missing == []


def test_every_threat_has_a_test() -> None:
    """A row without one would be a wish."""
    threats = PAGE.read_text().partition("## Threats")[2].partition("\n## ")[0]
    rows = [
        line for line in threats.splitlines() if line.startswith("| ") and not line.startswith("| threat")
    ]
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row.split("|")[3])] == []


def functions_of(file: Path) -> set[str]:
    """Names of the test functions of a file, empty where there is no such file."""
    if not file.is_file():
        return set()
    return {
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
