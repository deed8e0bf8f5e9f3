"""What the mutation run found, at the end of pytest's own report."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Killed / total of every alert whose rules were changed in this run."""
    told = [
        str(text)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, text in report.user_properties
        if name == "mutants"
    ]
    if told:
        terminalreporter.section("changes to the alert rules that a case noticed")
        for line in sorted(told):
            terminalreporter.write_line(line)
