"""`python -m tests.alerts.run_mutants [Alert ...]`: how many changes to the rules the tests notice."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from alerts.rules import groups

from .mutation import Mutant, mutants
from .promtool import run_tests, specs

# Changes that no case has to notice: (rule, part of the change), and why.
_COUNT = "an hour of traffic is in half a day and in two days alike, unless it was that long ago"
KNOWN: Final[Sequence[tuple[str, str, str]]] = (
    ("kvcache:itl_seconds:p95_baseline", "1d -> 172800s at 115", _COUNT),
    ("kvcache:itl_seconds:p95_baseline", "1d -> 43200s at 115", _COUNT),
    ("kvcache:itl_seconds:mean_baseline", "1d -> 172800s at 117", _COUNT),
    ("kvcache:itl_seconds:mean_baseline", "1d -> 43200s at 117", _COUNT),
)


def known(mutant: Mutant) -> bool:
    """Whether a survivor is one that makes no difference."""
    return any(mutant.rule == rule and part in mutant.change for rule, part, _ in KNOWN)


def survivors(alert: str, of: Iterable[Mutant], folder: Path) -> list[Mutant]:
    """The mutants that all cases of an alert pass with."""
    spec = specs()[alert]

    # A case that fails anyway would kill every mutant.
    if (whole := run_tests(spec, groups(), folder)).returncode:
        raise RuntimeError(f"{alert} fails unchanged: {whole.stdout}{whole.stderr}")

    def survives(numbered: tuple[int, Mutant]) -> bool:
        n, mutant = numbered
        room = folder / f"{alert}-{n}"
        room.mkdir()
        # One case after the other: most mutants fail the first, and some cases take a second.
        return all(
            run_tests(spec, mutant.groups, room, case["name"]).returncode == 0 for case in spec["cases"]
        )

    made = list(of)
    with ThreadPoolExecutor(2) as pool:
        return [m for m, alive in zip(made, pool.map(survives, enumerate(made)), strict=True) if alive]


def main(alerts: list[str]) -> None:
    """Print killed / total of every alert, and what survived."""
    totals: Counter[str] = Counter()
    for alert in alerts or sorted(specs()):
        made = list(mutants(groups(), alert))
        with tempfile.TemporaryDirectory() as folder:
            alive = survivors(alert, made, Path(folder))
        totals["made"] += len(made)
        totals["killed"] += len(made) - len(alive)
        print(f"{alert}: {len(made) - len(alive)} / {len(made)} killed", flush=True)
        for mutant in alive:
            print(f"  survives: {mutant.kind}: {mutant.rule}: {mutant.change}")
    print(f"all: {totals['killed']} / {totals['made']} killed")


if __name__ == "__main__":
    main(sys.argv[1:])
