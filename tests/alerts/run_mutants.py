"""`python -m tests.alerts.run_mutants [Alert ...]`: how many changes to the rules the tests notice."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from alerts.rules import groups

from .mutation import Mutant, mutants
from .promtool import run_case, specs


def survivors(alert: str, of: Iterable[Mutant], folder: Path) -> list[Mutant]:
    """The mutants that all cases of an alert pass with.  Raises RuntimeError where the rule itself fails."""
    spec = specs()[alert]
    # One case after the other until one fails. What noticed the last change is likely to notice the next one.
    order = tuple(case["name"] for case in spec["cases"])

    def survives(numbered: tuple[int, Mutant]) -> bool:
        nonlocal order
        n, mutant = numbered
        room = folder / f"{alert}-{n}"
        room.mkdir()
        for name in order:
            if run_case(spec, mutant.groups, room, name).returncode:
                order = (name, *(other for other in order if other != name))
                return False
        return True

    def fails(name: str) -> str | None:
        room = folder / name
        room.mkdir()
        done = run_case(spec, groups(), room, name)
        return f"{alert} fails unchanged: {done.stdout}{done.stderr}" if done.returncode else None

    made = list(of)
    # A thread waits for its promtool, which is a process of its own.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        # A case that fails anyway would notice every change.
        for failure in filter(None, pool.map(fails, order)):
            raise RuntimeError(failure)
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
