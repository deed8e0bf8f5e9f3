"""Every comparison of a run, kept: what was expected, what came, and whether it passed."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .claims import Claim
from .hardware import wants_gpu
from .scenes import Scene

Value = float | str | None
UNKNOWN = "unknown"
NO_GPU_NAMED = "a GPU"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is being checked: one engine with one model."""

    engine: str
    version: str
    model: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A comparison not yet judged: the truth, ours, and which case of the claim it is."""

    claim: Claim
    expected: Value
    got: Value
    case: str = ""
    times: int = 1
    """How many of what the claim's tolerance is for."""

    @property
    def allowed(self) -> float:
        """The greatest difference that passes."""
        return self.claim.allowed(self.expected) * self.times

    @property
    def passes(self) -> bool:
        """Within the claim's tolerance; what is no number has to be equal, absence (None) too."""
        if isinstance(self.expected, int | float) and isinstance(self.got, int | float):
            return abs(self.got - self.expected) <= self.allowed
        return self.expected == self.got


@dataclass(frozen=True, slots=True)
class Check:
    """One judged comparison, as the results file has it."""

    name: str
    model: str
    case: str
    expected: Value
    got: Value
    tolerance: float
    passed: bool

    def as_json(self) -> dict[str, Any]:
        """With the names that the results file uses."""
        told = asdict(self)
        told["pass"] = told.pop("passed")
        return told


@dataclass(frozen=True, slots=True)
class Moment:
    """Blocks or tokens in use at one time, in seconds since the load began."""

    at: float
    ours: float
    engine: float
    truth: float


@dataclass(frozen=True, slots=True)
class Reached:
    """How many sequences of one length were predicted, and how many ran side by side."""

    context: int
    predicted: int
    reached: int


@dataclass(slots=True)
class Account:
    """All that was seen of one subject."""

    scene: Scene
    checks: list[Check] = field(default_factory=list)
    usage: list[Moment] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Problem:
    """A test whose checks were not all made: it failed otherwise, did not start, or was skipped."""

    engine: str
    test: str
    outcome: str
    """"failed", "error" (before or after the test itself) or "skipped"."""
    reason: str
    """One line."""


class CheckFailedError(AssertionError):
    """A comparison failed: it is in the results already."""


class Ledger:
    """The checks of one test session, by subject."""

    def __init__(self) -> None:
        """Nothing has been checked yet."""
        self.started = datetime.now(UTC)
        self.accounts: dict[Subject, Account] = {}
        self.problems: list[Problem] = []
        self.complete = False
        """Whether the session came to its end."""

    def of(self, subject: Subject) -> Checks:
        """Where the checks of one subject go."""
        if subject not in self.accounts:
            self.accounts[subject] = Account(
                Scene(subject.engine, subject.version, subject.model, subject.gpu)
            )
        return Checks(subject, self.accounts[subject])

    def write_scenes(self, directory: Path) -> None:
        """The scenes of subjects of which a page was kept."""
        for account in self.accounts.values():
            if account.scene.idle:
                account.scene.write(directory)

    def results(self) -> list[dict[str, Any]]:
        """One entry per engine, release and GPU, each with its checks and the series of the plots.

        Problems are in every entry of their engine; one that never said its release is "unknown". Nothing at
        all where there was no check and only skipped tests.
        """
        entries: dict[tuple[str, str, str | None], dict[str, Any]] = {}
        for subject, account in self.accounts.items():
            key = (subject.engine, subject.version, subject.gpu)
            entry = entries.setdefault(key, self._entry(subject))
            entry["checks"] += [check.as_json() for check in account.checks]
            if account.usage:
                entry["usage"][subject.model] = [asdict(moment) for moment in account.usage]
            if account.reached:
                entry["reached"][subject.model] = [asdict(one) for one in account.reached]
        told = [entry for entry in entries.values() if entry["checks"]]
        if not told and all(one.outcome == "skipped" for one in self.problems):
            return []
        for engine in dict.fromkeys(one.engine for one in self.problems):
            of_engine = [entry for entry in told if entry["engine"] == engine]
            if not of_engine:
                of_engine = [self._entry(Subject(engine, UNKNOWN, "", NO_GPU_NAMED if wants_gpu() else None))]
                told += of_engine
            for entry in of_engine:
                entry["problems"] = [asdict(one) for one in self.problems if one.engine == engine]
        return told

    def _entry(self, subject: Subject) -> dict[str, Any]:
        return {
            "engine": subject.engine,
            "version": subject.version,
            "gpu": subject.gpu,
            "date": self.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "python": platform.python_version(),
            "complete": self.complete,
            "problems": [],
            "checks": [],
            "usage": {},
            "reached": {},
        }


class Checks:
    """Judges the figures of one subject and keeps them."""

    def __init__(self, subject: Subject, account: Account) -> None:
        """Keep what is judged in `account`."""
        self.subject = subject
        self.account = account

    def check(self, claim: Claim, *, expected: Value, got: Value, case: str = "") -> None:
        """Keep one comparison; raises AssertionError where it fails."""
        self.all([Figure(claim, expected, got, case)])

    def all(self, figures: Iterable[Figure]) -> None:
        """Keep every comparison, then raise AssertionError if one failed."""
        failed = []
        for one in figures:
            made = Check(
                one.claim.name,
                self.subject.model,
                one.case,
                one.expected,
                one.got,
                one.allowed,
                one.passes,
            )
            self.account.checks.append(made)
            if not made.passed:
                failed.append(
                    f"{made.name} ({made.case}): expected {made.expected} by {one.claim.truth}, "
                    f"got {made.got}, tolerance {made.tolerance:g}"
                )
        if failed:
            raise CheckFailedError("\n".join(failed))

    def reached(self, context: int, predicted: int, reached: int) -> None:
        """Keep a point of the plot of what fits."""
        self.account.reached.append(Reached(context, predicted, reached))


def write_results(results: list[dict[str, Any]], directory: Path) -> list[Path]:
    """One JSON file per entry; returns their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob(f"*-{UNKNOWN}-*.json"):  # of a moment at which it had not said its release
        stale.unlink()
    written = []
    for entry in results:
        on = "gpu" if entry["gpu"] else "cpu"
        path = directory / f"{entry['engine']}-{entry['version']}-{on}.json"
        path.write_text(json.dumps(entry, indent=1) + "\n")
        written.append(path)
    return written


def read_results(directory: Path) -> list[dict[str, Any]]:
    """What `write_results` wrote; raises OSError or ValueError where a file can't be read."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
