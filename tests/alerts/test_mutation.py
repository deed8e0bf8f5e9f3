"""Do the cases notice when a rule changes?  Every alert, every kind of change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from alerts.rules import groups

from .mutation import mutants
from .promtool import needs, specs
from .run_mutants import survivors


@pytest.mark.mutation
@pytest.mark.timeout(900)
@pytest.mark.parametrize("alert", sorted(specs()))
def test_changes_are_noticed(
    alert: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A rule that can be changed without a case failing is a rule nobody tests."""
    needs("promtool")
    made = list(mutants(groups(), alert))
    alive = survivors(alert, made, tmp_path)
    record_property("mutants", f"{alert}: {len(made) - len(alive)} / {len(made)} killed")
    kinds = {mutant.kind for mutant in made}
    # Windows and guards too where there are any; these four are in every alert.
    assert kinds >= {"threshold", "operator", "label", "for"}
    assert [f"{m.kind}: {m.rule}: {m.change}" for m in alive] == []
