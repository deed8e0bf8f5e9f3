"""What a page of ours has to say about finished requests, whatever the engine: pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from exporter import catalogue as c

from . import claims
from .checks import Figure
from .load import Request
from .page import Page
from .sidecar import Sidecar
from .waiting import wait_for

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class TierTruth:
    """What the client saw of the requests of one tier."""

    requests: int
    gap_seconds: float
    ttft_seconds: float


def by_tier(requests: Sequence[Request], tiers: Sequence[int]) -> Mapping[int, TierTruth]:
    """Finished requests by the first tier that holds prompt and output; each of two tokens at least."""
    found: dict[int, list[Request]] = {}
    for one in requests:
        length = one.prompt_tokens + one.received_tokens
        found.setdefault(min(tier for tier in tiers if tier >= length), []).append(one)
    return {
        tier: TierTruth(
            len(ones), fmean(one.gap_seconds for one in ones), fmean(one.ttft_seconds for one in ones)
        )
        for tier, ones in sorted(found.items())
    }


def tier_requests(page: Page) -> float:
    """Finished requests of all tiers so far."""
    return float(sum(s.value for s in page.all(c.CONTEXT_REQUESTS.name)))


def latency(truth: Mapping[int, TierTruth], before: Page, after: Page) -> Iterator[Figure]:
    """Inter-token latency and time to first token by tier, of what finished between two pages."""

    def grown(name: str, tier: int) -> float:
        now, then = (sum(s.value for s in page.all(name, context=str(tier))) for page in (after, before))
        return now - then

    for tier, seen in truth.items():
        case = f"up to {tier} tokens"
        yield Figure(claims.TIER_REQUESTS, seen.requests, grown(c.CONTEXT_REQUESTS.name, tier), case)
        for claim, metric, expected in (
            (claims.ITL, c.ITL_SECONDS, seen.gap_seconds),
            (claims.TTFT, c.TTFT_SECONDS, seen.ttft_seconds),
        ):
            count = grown(f"{metric.name}_count", tier)
            got = grown(f"{metric.name}_sum", tier) / count if count else None
            yield Figure(claim, expected, got, case)


def prefix(
    before: Page, after: Page, queries: float, hits: float, case: str = "", **labels: str
) -> Iterator[Figure]:
    """Prompt tokens looked up and found between two pages; no series yet is none."""
    for claim, metric, expected in (
        (claims.PREFIX_QUERIES, c.PREFIX_QUERY_TOKENS, queries),
        (claims.PREFIX_HITS, c.PREFIX_HIT_TOKENS, hits),
    ):
        now, then = (sum(s.value for s in page.all(metric.name, **labels)) for page in (after, before))
        yield Figure(claim, expected, now - then, case)


def ended(page: Page) -> float:
    """Requests that ended so far; an engine creates its counter with the first of them."""
    return float(sum(sample.value for sample in page.all(c.REQUESTS.name)))


def once_finished(sidecar: Sidecar, before: Page, requests: int) -> Page:
    """Our page of a moment when so many more requests have been counted, or the last one after a minute.

    An engine counts a request a little after its client has read the last token.
    """

    def counted() -> bool:
        return ended(sidecar.scrape()) - ended(before) >= requests

    with suppress(TimeoutError):
        wait_for(counted, _PATIENCE_S, "the requests counted")
    return sidecar.scrape_fresh()


def finished(before: Page, after: Page, requests: int, case: str = "") -> Iterator[Figure]:
    """Requests that the client saw finish between two pages."""
    yield Figure(claims.FINISHED, requests, ended(after) - ended(before), case)
