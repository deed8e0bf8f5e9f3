"""Pages as plain text: lines taken apart with regular expressions, nothing of the exporter's own.

Both sides of a comparison go through here: what the engine said and what the
exporter printed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.cli import main

RECORDINGS = Path(__file__).parents[1] / "recordings"
DATA = Path(__file__).parents[1] / "data"

_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a page."""

    name: str
    labels: Mapping[str, str]
    value: float


class Text:
    """A page's lines."""

    def __init__(self, text: str) -> None:
        self.series: list[Series] = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                match = _LINE.fullmatch(line)
                assert match, f"no line of a page: {line[:200]}"
                name, labels, value = match.groups()
                self.series.append(Series(name, dict(_LABEL.findall(labels or "")), float(value)))

    def all(self, name: str, **labels: str) -> list[Series]:
        """Series of ``name`` that carry ``labels``; an empty value stands for "has no such label"."""
        return [
            s
            for s in self.series
            if s.name == name and all(s.labels.get(k, "") == v for k, v in labels.items())
        ]

    def one(self, name: str, **labels: str) -> float:
        """The value of the only such series; fails where there is none, or a second one."""
        found = self.all(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {len(found)} series: {found}"
        return found[0].value

    def maybe(self, name: str, **labels: str) -> float | None:
        """Like :meth:`one`, but ``None`` where there is no such series."""
        return self.one(name, **labels) if self.all(name, **labels) else None

    def values(self, name: str, label: str) -> dict[str, float]:
        """Value by label; fails where two series share a label value."""
        found = self.all(name)
        values = {s.labels.get(label, ""): s.value for s in found}
        assert len(values) == len(found), f"{name} has two series of one {label}: {found}"
        return values

    def reason(self, signal: str, **labels: str) -> str:
        """Why ``signal`` is missing; fails where no reason is given, or two."""
        found = self.all("kvcache_exporter_unavailable", signal=signal, **labels)
        assert len(found) == 1, f"{signal}: {len(found)} reasons: {found}"
        return found[0].labels["reason"]


def explain(capsys: pytest.CaptureFixture[str], arguments: Sequence[str | Path], code: int = 0) -> Text:
    """What ``kvcache-exporter explain ARGUMENTS --output prom`` prints, every series once."""
    capsys.readouterr()
    assert main(["explain", *map(str, arguments), "--output", "prom"]) == code
    page = Text(capsys.readouterr().out)
    written = [(s.name, frozenset(s.labels.items())) for s in page.series]
    assert len(set(written)) == len(written), "a series is written twice"
    return page
