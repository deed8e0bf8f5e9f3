"""Every alert against promtool: when it fires, when it does not, and what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from alerts import build
from alerts.rules import HERE, groups

from .promtool import needs, run_case, specs

RULES = HERE / "rules" / "kvcache.rules.yaml"
_CASES = [(alert, case["name"]) for alert, spec in specs().items() for case in spec["cases"]]


def test_rule_files_are_what_the_source_makes() -> None:
    """Somebody who edits rules/ or forgets to build would ship rules that the tests never saw."""
    assert build.stale() == []


def test_prometheus_accepts_the_rules() -> None:
    """A file that does not load silences every alert in it."""
    checked = subprocess.run(
        [needs("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(("alert", "case"), _CASES, ids=[f"{alert}-{case}" for alert, case in _CASES])
def test_alert(alert: str, case: str, tmp_path: Path) -> None:
    """Each case's reason stands in its file."""
    done = run_case(specs()[alert], groups(), tmp_path, case)
    assert done.returncode == 0, done.stdout + done.stderr
