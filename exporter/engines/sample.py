"""One engine rank at one instant, normalised: what derivation starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exporter.engines.exposition import Page, Sample
from exporter.kvmath.known import Reason, Unavailable

NOT_REPORTED = Unavailable(Reason.NOT_REPORTED)
# Tokens, bytes or sequences beyond this exist nowhere; products of two stay far inside a float.
MAX_COUNT = 1e18
# Ranks of one page; a server of this many engines exists nowhere, a hostile page might.
MAX_RANKS = 256
# Ways in which the samples of a page name their ranks: each rank has some few.
MAX_SPELLINGS = 4 * MAX_RANKS


@dataclass(frozen=True, slots=True)
class PrefixCounts:
    """Prompt tokens looked up in the prefix cache and found there, since start.

    ``query_tokens`` by route ("" where the page names none), ``hit_tokens`` by
    (route, cache source).
    """

    query_tokens: Mapping[str, float]
    hit_tokens: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class ItlHistogram:
    """The engine's histogram of gaps between tokens, since its start.

    ``bounds``: upper bounds in seconds, rising, the last one infinite;
    ``counts``: tokens up to each bound (cumulative); ``sum_seconds``: all gaps.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """The engine's own figures for one data-parallel rank.

    Everything is per engine (not per server), per GPU where the name says
    ``device``.  Blocks are vLLM's blocks or SGLang's pages.  ``whole_server``
    marks the extra entry for counters which a server with several ranks keeps
    for all of them together; its pool fields are empty.  ``tensor_ranks`` and
    ``pipeline_ranks`` are GPUs that the page itself shows (SGLang), ``None``
    where it does not tell; ``several_pools`` whether window or state pools stand
    beside the KV pool (SGLang), ``None`` where the release does not tell.
    ``state_slots`` hold a sequence's recurrent states each (SGLang).
    """

    software: str
    model_name: str = ""
    engine: str = ""
    replica: str = ""
    whole_server: bool = False

    usage_ratio: float | Unavailable = NOT_REPORTED
    num_blocks: int | Unavailable = NOT_REPORTED
    null_blocks: int = 0
    block_tokens: int | Unavailable = NOT_REPORTED
    capacity_tokens: int | Unavailable = NOT_REPORTED
    used_tokens: int | Unavailable = NOT_REPORTED
    cached_tokens: int | Unavailable = NOT_REPORTED
    window_capacity_tokens: int | Unavailable = NOT_REPORTED
    window_used_tokens: int | Unavailable = NOT_REPORTED
    state_slots: int | Unavailable = NOT_REPORTED
    used_state_slots: int | Unavailable = NOT_REPORTED
    max_concurrency: float | Unavailable = NOT_REPORTED
    device_pool_bytes: int | Unavailable = NOT_REPORTED
    max_model_len: int | Unavailable = NOT_REPORTED
    cache_dtype: str | None = None
    state_dtype: str | None = None
    prefix_caching: bool | None = None
    speculative: bool | None = None
    tensor_ranks: int | None = None
    pipeline_ranks: int | None = None
    several_pools: bool | None = None
    attention_free: bool = False

    running_sequences: int | Unavailable = NOT_REPORTED
    waiting_sequences: int | Unavailable = NOT_REPORTED
    preemptions: float | Unavailable = NOT_REPORTED
    preempted_requests: float | Unavailable = NOT_REPORTED
    preempted_requests_exact: bool = True
    requests: Mapping[str, float] | Unavailable = NOT_REPORTED
    evicted_tokens: float | Unavailable = NOT_REPORTED
    prefix: PrefixCounts | Unavailable = NOT_REPORTED
    itl: ItlHistogram | Unavailable = NOT_REPORTED


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rank a sample belongs to; ``None`` where its labels do not say."""

    model_name: str | None
    engine: str | None
    replica: str | None = None

    def covers(self, other: Identity) -> bool:
        """True where ``other`` says the same, or less."""
        return all(
            theirs is None or theirs == mine
            for mine, theirs in (
                (self.model_name, other.model_name),
                (self.engine, other.engine),
                (self.replica, other.replica),
            )
        )

    def compatible(self, other: Identity) -> bool:
        """True where nothing said by both differs."""
        return all(
            mine is None or theirs is None or mine == theirs
            for mine, theirs in (
                (self.model_name, other.model_name),
                (self.engine, other.engine),
                (self.replica, other.replica),
            )
        )


class Reader:
    """Looks samples of one page up by rank.

    ``identify`` reads a sample's identity off its labels (an engine's own
    spelling).  A sample that says less than the full identity (vLLM's
    ``cache_config_info`` has no model name) belongs to the one rank it can
    belong to; where that could be several, it belongs to none of them.
    """

    def __init__(self, page: Page, identify: Callable[[Sample], Identity], naming: frozenset[str]) -> None:
        self.page = page
        self.identify = identify
        self._owners: dict[Identity, Identity | None] = {}
        self._owned: dict[str, dict[Identity, list[Sample]]] = {}
        # In the page's order, so that the first ranks are the ones kept.
        named = dict.fromkeys(identify(s) for name in page.families if name in naming for s in page.get(name))
        found = set(list(named)[:MAX_RANKS])
        ordered = sorted(found, key=repr)
        merged = {self._completed(one, ordered) for one in found}
        self.identities: tuple[Identity, ...] = tuple(
            sorted(
                (i for i in merged if not any(o != i and o.covers(i) for o in merged)),
                key=lambda i: (i.model_name or "", i.replica or "", i.engine or ""),
            )
        )
        self._by_engine: dict[str | None, list[Identity]] = {}
        for identity in self.identities:
            self._by_engine.setdefault(identity.engine, []).append(identity)

    @staticmethod
    def _completed(one: Identity, found: Sequence[Identity]) -> Identity:
        # {model, no engine} and {engine, no model} describe one rank together.
        for other in found:
            if one.compatible(other):
                one = Identity(
                    one.model_name if one.model_name is not None else other.model_name,
                    one.engine if one.engine is not None else other.engine,
                    one.replica if one.replica is not None else other.replica,
                )
        return one

    def samples(self, family: str, identity: Identity) -> Sequence[Sample]:
        """The samples of ``family`` that belong to ``identity``, unambiguously."""
        if family not in self._owned:
            owned = self._owned[family] = {}
            for sample in self.page.get(family):
                owner = self._owner(self.identify(sample))
                if owner is not None:
                    owned.setdefault(owner, []).append(sample)
        return self._owned[family].get(identity, ())

    def _owner(self, said: Identity) -> Identity | None:
        """The one rank that ``said`` can mean, if it is one."""
        if said not in self._owners:
            if len(self._owners) >= MAX_SPELLINGS:
                return None
            near: Sequence[Identity] = self.identities
            if said.engine is not None:
                near = [*self._by_engine.get(said.engine, ()), *self._by_engine.get(None, ())]
            possible = [identity for identity in near if identity.compatible(said)]
            self._owners[said] = possible[0] if len(possible) == 1 else None
        return self._owners[said]

    def value(self, family: str, identity: Identity) -> float | Unavailable:
        """The one value of ``family``; ranks that repeat it must agree."""
        values = {s.value for s in self.samples(family, identity)}
        if not values:
            return Unavailable(Reason.NOT_REPORTED, f"{family} is not on the page")
        if len(values) > 1:
            return Unavailable(
                Reason.CONTRADICTION, f"{family} has {len(values)} different values for one rank"
            )
        return values.pop()

    def first(self, families: tuple[str, ...], identity: Identity) -> float | Unavailable:
        """:meth:`value` of the first of ``families`` that is there (newest name first)."""
        missing: Unavailable | None = None
        for family in families:
            value = self.value(family, identity)
            if not isinstance(value, Unavailable):
                return value
            if missing is None or value.reason is not Reason.NOT_REPORTED:
                missing = value
        return missing or NOT_REPORTED

    def total(self, family: str, identity: Identity) -> float | Unavailable:
        """The sum over the series of ``family`` (routes, modes), if there are any."""
        samples = self.samples(family, identity)
        if not samples:
            return Unavailable(Reason.NOT_REPORTED, f"{family} is not on the page")
        return sum(s.value for s in samples)


def whole(value: float | Unavailable) -> int | Unavailable:
    """A count that must be a whole number, of a size that exists."""
    if isinstance(value, Unavailable):
        return value
    if value < MAX_COUNT and value == int(value):
        return int(value)
    return Unavailable(Reason.OUT_OF_RANGE, f"{value:g} is not a count")


def ratio(value: float | Unavailable) -> float | Unavailable:
    """A ratio that must lie in 0..1."""
    if isinstance(value, Unavailable) or 0.0 <= value <= 1.0:
        return value
    return Unavailable(Reason.OUT_OF_RANGE, f"a ratio of {value:g}")
