"""Prometheus text in, the few samples we need out.

A busy vLLM page is 57 kB and nine tenths of it are histogram buckets nobody
here reads, so lines are chosen by name *before* ``prometheus_client`` parses
them, and that parser is shown each label set once.  ``# TYPE`` lines are not
passed on at all: their names can disagree with the samples (an OpenMetrics round
trip renames ``vllm:x`` to ``vllm_x`` in one and not in the other, client_python
0.26.0), and their types can be words the parser does not know.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

# A line of ours is a few hundred bytes (vLLM's cache_config_info about 1.2 kB).
MAX_LINE_CHARS = 8_192
# Lines of interest together: the parser goes character by character, a second or so for these.
MAX_CHOSEN_CHARS = 4 * 2**20
# A label value goes into every series of its rank, so a page of long ones would be a far longer one here.
MAX_LABEL_CHARS = 512
# Real pages hold tens to some hundreds of the samples asked for (routes, ranks).
MAX_SAMPLES = 20_000
# Parsed label sets kept: some hundred engines' worth, a few MiB in practice.
MAX_CACHED_HEADS = 8_192
MAX_CACHED_CHARS = 2_048


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


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """One engine's spellings: every accepted sample name -> canonical family.

    Compared by identity: there is one per engine.
    """

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


class _TooLong(ValueError):
    """A label value beyond its cap."""


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one engine's page, by canonical family."""

    software: str
    families: Mapping[str, tuple[Sample, ...]]
    dropped: Mapping[Dropped, int] = field(default_factory=dict)

    def get(self, family: str) -> tuple[Sample, ...]:
        return self.families.get(family, ())


def read_page(text: str, vocabularies: tuple[Vocabulary, ...]) -> Page:
    """Filter, parse and clean ``text``; the vocabulary with most lines wins.

    Of equals the earlier one does, so the order is the order of trust.  Never
    raises; whatever is unusable is counted in ``dropped``.
    """
    chosen, dropped = _choose(text, _merged(vocabularies))
    best = max(range(len(vocabularies)), key=lambda n: len(chosen.get(n, ())))
    lines = chosen.get(best, ())
    if not lines:
        return Page("", {}, dropped)
    families: dict[str, list[Sample]] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family, line in lines:
        try:
            labels, value = _sample(line)
        except _TooLong:
            dropped[Dropped.TOO_LONG] += 1
            continue
        except Exception:  # the parser raises ValueError, IndexError, KeyError, ... on garbage
            dropped[Dropped.MALFORMED] += 1
            continue
        if not math.isfinite(value):
            dropped[Dropped.NOT_FINITE] += 1
        elif value < 0:
            dropped[Dropped.NEGATIVE] += 1
        elif (key := (family, frozenset(labels.items()))) in seen:
            dropped[Dropped.DUPLICATE] += 1
        else:
            seen.add(key)
            families.setdefault(family, []).append(Sample(family, labels, value))
    return Page(vocabularies[best].software, {name: tuple(s) for name, s in families.items()}, dropped)


@lru_cache(maxsize=8)
def _merged(vocabularies: tuple[Vocabulary, ...]) -> Mapping[str, tuple[int, str]]:
    """Sample name -> (which vocabulary, canonical family); an earlier vocabulary keeps its names."""
    return {
        name: (n, family)
        for n, vocabulary in reversed(list(enumerate(vocabularies)))
        for name, family in vocabulary.names.items()
    }


def _choose(
    text: str, names: Mapping[str, tuple[int, str]]
) -> tuple[dict[int, list[tuple[str, str]]], Counter[Dropped]]:
    """(family, line) of the lines asked for, by vocabulary, in one pass."""
    chosen: dict[int, list[tuple[str, str]]] = {}
    dropped: Counter[Dropped] = Counter()
    many = chars = 0
    for line in text.split("\n"):
        brace = line.find("{")
        name = line[:brace] if brace > 0 else line[: line.find(" ")]
        found = names.get(name) or names.get(name.strip())
        if found is None:
            continue
        if len(line) > MAX_LINE_CHARS:
            dropped[Dropped.TOO_LONG] += 1
        elif many >= MAX_SAMPLES or chars + len(line) > MAX_CHOSEN_CHARS:
            dropped[Dropped.TOO_MANY] += 1
        else:
            many += 1
            chars += len(line)
            chosen.setdefault(found[0], []).append((found[1], line))
    return chosen, dropped


def _sample(line: str) -> tuple[Mapping[str, str], float]:
    """Labels and value of one line.  Raises where it is not a sample.

    The value stands behind the last brace (values cannot hold one, label values
    can), perhaps with a time stamp behind it.
    """
    head, brace, tail = line.rpartition("}")
    words = tail.split()
    labels: Mapping[str, str] = {}
    if brace:
        labels = _labels(head + brace) if len(head) < MAX_CACHED_CHARS else _labels.__wrapped__(head + brace)
    else:
        words = words[1:]
    if not 1 <= len(words) <= 2 or "_" in words[0]:  # Python's float() takes 1_000
        raise ValueError("not a sample")
    return labels, float(words[0])


@lru_cache(maxsize=MAX_CACHED_HEADS)
def _labels(head: str) -> Mapping[str, str]:
    """The labels of ``name{...}`` as prometheus_client reads them.

    An engine's series keep their names from page to page and only the values
    move, so the character-by-character work is done once.
    """
    samples = [s for family in text_string_to_metric_families(f"{head} 0\n") for s in family.samples]
    if len(samples) != 1:
        raise ValueError("not a sample")
    sample = samples[0]
    if all(len(value) <= MAX_LABEL_CHARS for value in sample.labels.values()):
        return sample.labels
    if not sample.name.endswith("_info"):
        raise _TooLong
    # One odd setting must not cost the others.
    return {name: value for name, value in sample.labels.items() if len(value) <= MAX_LABEL_CHARS}
