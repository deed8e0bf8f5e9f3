"""Do the cases notice when a rule changes?  Every alert, every kind of change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from alerts.rules import groups

from .mutation import mutants
from .promtool import needs, specs
from .run_mutants import known, survivors


# Some alerts look back for a day, which takes promtool a second a run.
@pytest.mark.mutation
@pytest.mark.timeout(900)
@pytest.mark.parametrize("alert", sorted(specs()))
def test_changes_are_noticed(alert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule that can be changed without a case failing is a rule nobody tests."""
    needs("promtool")
    made = list(mutants(groups(), alert))
    alive = survivors(alert, made, tmp_path)
    kinds = Counter(mutant.kind for mutant in made)
    killed = kinds - Counter(mutant.kind for mutant in alive)
    with capsys.disabled():
        print(f"\n{alert}: {killed.total()} / {kinds.total()} killed", end=" ")
    # Each kind of change is noticed, and what is not noticed is known, with its reason.
    assert set(killed) >= {"operator", "label", "for"} & set(kinds)
    assert [f"{m.kind}: {m.rule}: {m.change}" for m in alive if not known(m)] == []
