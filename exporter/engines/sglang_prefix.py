"""SGLang's prefix counters: which of several to believe, and by which route."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter.engines.exposition import Page, Sample
from exporter.engines.sample import Identity, PrefixCounts, Reader
from exporter.kvmath.known import Reason, Unavailable

PREFILL = "prefill_effective_tokens"
PROMPT, CACHED = "prompt_tokens", "cached_tokens"
FINISHED = "num_requests"
CACHE_SOURCE_SINCE = (0, 5, 9)
# Routes are whatever clients send; past this many the rest is one series.
MAX_ROUTES = 50
OTHER_ROUTE = "other"


def has_routes(page: Page) -> bool:
    """True where the engine labels its request counters by route."""
    # The label alone decides: with custom labels on it is there before any request has a
    # route, and a source that changed with the first one would read as a counter reset.
    return any("route" in s.labels for name in (PROMPT, CACHED) for s in page.get(name))


def prefix_counts(
    reader: Reader, identity: Identity, release: tuple[int, ...] | None
) -> PrefixCounts | Unavailable:
    """By route where the engine labels routes, else what prefill really
    looked up (0.5.18 on), else the prompt tokens of finished requests."""
    samples = reader.samples(PREFILL, identity)
    counted = sum(s.value for s in samples)
    if samples and counted and not any(reader.page.get(name) for name in (PROMPT, FINISHED)):
        # Whether requests have routes shows with the first that finishes, and a source that
        # changed then would read as a counter reset.
        return Unavailable(Reason.NO_TRAFFIC, "no request has finished yet")
    if samples and not has_routes(reader.page):
        hits = {
            ("", s.labels.get("mode", "").removesuffix("_hit")): s.value
            for s in samples
            if s.labels.get("mode", "").endswith("_hit")
        }
        return PrefixCounts({"": counted}, hits)
    return by_request(reader, identity, release)


def by_request(
    reader: Reader, identity: Identity, release: tuple[int, ...] | None
) -> PrefixCounts | Unavailable:
    """Prompt tokens of finished requests, and those of them that came from the cache, by route."""
    prompts, cached = reader.samples(PROMPT, identity), reader.samples(CACHED, identity)
    if not prompts:
        return Unavailable(
            Reason.NOT_REPORTED, "no prompt token counter; the hit rate gauge is one batch only"
        )
    bounded = _bounded_routes(prompts)
    queries: dict[str, float] = {}
    hits: dict[tuple[str, str], float] = {}
    for sample in prompts:
        route = bounded[sample.labels.get("route", "")]
        queries[route] = queries.get(route, 0.0) + sample.value
    for sample in cached:
        route = bounded.get(sample.labels.get("route", ""), OTHER_ROUTE)
        key = (route, sample.labels.get("cache_source", ""))
        hits[key] = hits.get(key, 0.0) + sample.value
    source = "device" if release and release >= CACHE_SOURCE_SINCE else ""
    for route in queries:
        if not any(r == route for r, _ in hits):
            hits[route, source] = 0.0
    return PrefixCounts(queries, hits)


def _bounded_routes(samples: Sequence[Sample]) -> Mapping[str, str]:
    """Each route to itself, the first MAX_ROUTES of the page (its oldest), the rest to one."""
    routes = list(dict.fromkeys(s.labels.get("route", "") for s in samples))
    return {r: r if n < MAX_ROUTES else OTHER_ROUTE for n, r in enumerate(routes)}
