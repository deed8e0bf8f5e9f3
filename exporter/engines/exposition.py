"""Prometheus text in, the few samples we need out.

A busy vLLM page is 57 kB and nine tenths of it are histogram buckets nobody
here reads, so lines are chosen by name *before* ``prometheus_client`` parses
them.  ``# TYPE`` lines are not passed on at all: their names can disagree with
the samples (an OpenMetrics round trip renames ``vllm:x`` to ``vllm_x`` in one
and not in the other, client_python 0.26.0), and their types can be words the
parser does not know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

# A line of ours is a few hundred bytes (vLLM's cache_config_info about 1.2 kB).
MAX_LINE_CHARS = 65_536
# Real pages hold tens to some hundreds of the samples asked for (routes, ranks).
MAX_SAMPLES = 20_000


class Dropped(StrEnum):
    """Why a line that was asked for is not used (a bounded label)."""

    MALFORMED = "malformed_line"
    TOO_LONG = "line_too_long"
    NOT_FINITE = "not_finite"
    NEGATIVE = "negative"
    DUPLICATE = "duplicate_series"
    TOO_MANY = "too_many_series"


class Sample(NamedTuple):
    """One sample under its canonical family name (no prefix, no ``_total``)."""

    family: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One engine's spellings: every accepted sample name -> canonical family."""

    software: str
    names: Mapping[str, str]

    @classmethod
    def build(cls, software: str, prefixes: Iterable[str], families: Iterable[str]) -> Vocabulary:
        """Each family under each prefix, with and without ``_total``."""
        wanted = list(families)
        return cls(
            software,
            {prefix + name + end: name for prefix in prefixes for name in wanted for end in ("", "_total")},
        )


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one engine's page, by canonical family."""

    software: str
    families: Mapping[str, tuple[Sample, ...]]
    dropped: Mapping[Dropped, int] = field(default_factory=dict)

    def get(self, family: str) -> tuple[Sample, ...]:
        return self.families.get(family, ())


def read_page(text: str, vocabularies: Iterable[Vocabulary]) -> Page:
    """Filter, parse and clean ``text``; the vocabulary with most lines wins.

    A later vocabulary is used only where it finds strictly more than an
    earlier one, so the order is the order of trust.  Never raises; whatever is
    unusable is counted in ``dropped``.
    """
    best: tuple[Vocabulary, list[str], Counter[Dropped]] | None = None
    for vocabulary in vocabularies:
        lines, dropped = _choose(text, vocabulary.names)
        if best is None or len(lines) > len(best[1]):
            best = (vocabulary, lines, dropped)
    if best is None or not best[1]:
        return Page("", {}, best[2] if best else {})
    vocabulary, lines, dropped = best
    families: dict[str, list[Sample]] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for name, labels, value in _parse(lines, dropped):
        family = vocabulary.names.get(name)
        if family is None:
            dropped[Dropped.MALFORMED] += 1
        elif not math.isfinite(value):
            dropped[Dropped.NOT_FINITE] += 1
        elif value < 0:
            dropped[Dropped.NEGATIVE] += 1
        elif (key := (family, frozenset(labels.items()))) in seen:
            dropped[Dropped.DUPLICATE] += 1
        else:
            seen.add(key)
            families.setdefault(family, []).append(Sample(family, labels, value))
    return Page(vocabulary.software, {name: tuple(found) for name, found in families.items()}, dropped)


def _choose(text: str, names: Mapping[str, str]) -> tuple[list[str], Counter[Dropped]]:
    chosen: list[str] = []
    dropped: Counter[Dropped] = Counter()
    for line in text.split("\n"):
        brace = line.find("{")
        name = line[:brace] if brace > 0 else line[: line.find(" ")]
        if name not in names and name.strip() not in names:
            continue
        if len(line) > MAX_LINE_CHARS:
            dropped[Dropped.TOO_LONG] += 1
        elif len(chosen) >= MAX_SAMPLES:
            dropped[Dropped.TOO_MANY] += 1
        else:
            chosen.append(line)
    return chosen, dropped


def _parse(lines: list[str], dropped: Counter[Dropped]) -> Iterable[tuple[str, Mapping[str, str], float]]:
    """All lines in one go; only if one of them is broken, line by line."""
    try:
        return list(_samples("\n".join(lines)))
    except Exception:
        good: list[tuple[str, Mapping[str, str], float]] = []
        for line in lines:
            try:
                good.extend(_samples(line))
            except Exception:  # the parser raises ValueError, IndexError, KeyError, ... on garbage
                dropped[Dropped.MALFORMED] += 1
        return good


def _samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, float(sample.value)
