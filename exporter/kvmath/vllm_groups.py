"""Which layers share a block table: vLLM's cache groups.

Follows vLLM 0.32.0 v1/core/kv_cache_utils.py ``get_kv_cache_groups``: one group
where all layers need the same token slots, else pages are made equal and layers
alike are dealt out to groups of one size; DeepSeek V4's records are packed
block by block instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exporter.kvmath.blocks import ceil_div
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import EVERY_TOKEN, RECENT_TOKENS, Kind
from exporter.kvmath.vllm_pages import Page

_RECORDS: Final = frozenset({Kind.RECORD_WINDOW, Kind.RING})


@dataclass(frozen=True, slots=True)
class Grouping:
    """``pages`` per layer, after unification; ``members``: layer numbers of every group; ``mixed``: per
    group, whether its layers keep pages of their own sizes."""

    pages: tuple[Page, ...]
    members: tuple[tuple[int, ...], ...]
    mixed: tuple[bool, ...]


def grouped(pages: list[Page], hybrid_manager: bool) -> Grouping | Unavailable:
    """The groups of ``pages``.  ``Unavailable(UNSUPPORTED_ATTENTION)`` where the engine refuses to start."""
    if not hybrid_manager:
        promoted = _promoted(pages)
        if isinstance(promoted, Unavailable):
            return promoted
        pages = promoted
    everyone = tuple(range(len(pages)))
    if len(set(pages)) == 1:
        return Grouping(tuple(pages), (everyone,), (False,))
    if _one_table(pages):
        return Grouping(tuple(pages), (everyone,), (True,))
    if any(page.kind in _RECORDS for page in pages):
        members = _packed(pages)
        return Grouping(tuple(pages), members, (True,) * len(members))
    unified = _unified(pages)
    if isinstance(unified, Unavailable):
        # A latent beside windows whose pages can't be made equal: windows are stored in full.
        promoted = _promoted(pages)
        if isinstance(promoted, Unavailable) or any(page.kind is Kind.CHUNK for page in pages):
            return unified
        return Grouping(tuple(promoted), (everyone,), (True,))
    members = _dealt(unified)
    return Grouping(tuple(unified), members, (False,) * len(members))


def _table(page: Page) -> tuple[object, ...]:
    """Layers with the same answer, and the same block size, always need the same token slots."""
    if page.kind in EVERY_TOKEN:
        return ("every token",)
    if page.kind in _RECORDS:
        return ("records", page.window_tokens)
    if page.kind is Kind.STATE:
        return ("state", page.page_bytes)
    return (page.kind, page.window_tokens)


def _one_table(pages: Iterable[Page]) -> bool:
    """Whether one block table serves all (``UniformTypeKVCacheSpecs.is_uniform_type``)."""
    return len({(_table(page), page.block_tokens) for page in pages}) == 1


def _promoted(pages: list[Page]) -> list[Page] | Unavailable:
    """Without the hybrid manager window and chunk layers are stored in full, if there are full layers.

    (``_promote_local_kv_cache_specs``.)  A model that is all one window stays so;
    states and DeepSeek V4's records can't be stored in full.
    """
    if _one_table(pages):
        return pages
    full = {page.block_tokens for page in pages if page.kind in EVERY_TOKEN}
    whole = [
        replace(page, kind=Kind.FULL, window_tokens=0) if full and page.kind in RECENT_TOKENS else page
        for page in pages
    ]
    if any(page.kind in _RECORDS for page in pages) or not _one_table(whole):
        return Unavailable(
            Reason.UNSUPPORTED_ATTENTION, "without the hybrid manager: layers that no single group can hold"
        )
    return whole


def _unified(pages: list[Page]) -> list[Page] | Unavailable:
    """Pages of one size (``unify_kv_cache_spec_page_size``).

    A page that divides the largest gets more tokens; a state, or K and V that don't
    divide it, gets padding; a latent that doesn't is refused.
    """
    largest = max(page.page_bytes for page in pages)
    unified = []
    for page in pages:
        ratio, rest = divmod(largest, page.page_bytes)
        if page.kind is not Kind.STATE and not rest:
            unified.append(page.of_tokens(page.block_tokens * ratio))
        elif page.kind in (Kind.MLA, Kind.INDEXER, Kind.COMPRESSED):
            return Unavailable(
                Reason.UNSUPPORTED_ATTENTION, "a latent's page does not divide the largest page"
            )
        else:
            unified.append(replace(page, page_bytes=largest))
    return unified


def _dealt(pages: Sequence[Page]) -> tuple[tuple[int, ...], ...]:
    """Layers alike go together (``_get_kv_cache_groups_uniform_page_size``).

    Groups must be of one size, so the more numerous kind is split into groups as
    small as the rarest kind's, unless the most numerous is less than half as
    numerous again: then the rarer are padded up to it.  Layers are dealt out in
    turn, which spreads each group over the pipeline stages.
    """
    alike: dict[Page, list[int]] = {}
    for number, page in enumerate(pages):
        alike.setdefault(page, []).append(number)
    fewest, most = min(map(len, alike.values())), max(map(len, alike.values()))
    group_layers = most if most < fewest * 1.5 else fewest
    groups: list[tuple[int, ...]] = []
    for numbers in alike.values():
        parts = ceil_div(len(numbers), group_layers)
        groups += [tuple(numbers[part::parts]) for part in range(parts)]
    return tuple(groups)


# -- packing (``_get_packed_kv_cache_groups``) ------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers one table could serve, by page size in order of appearance."""

    by_page: dict[int, list[int]]
    state_like: bool

    @property
    def numbers(self) -> list[int]:
        return sorted(number for numbers in self.by_page.values() for number in numbers)

    @property
    def balanced(self) -> bool:
        """As many layers of each page size: a pattern that repeats."""
        return len({len(numbers) for numbers in self.by_page.values()}) == 1

    @property
    def repeats(self) -> int:
        return max(map(len, self.by_page.values()))

    def widest(self, parts: int) -> int:
        """Bytes of the largest of ``parts`` groups."""
        return sum(ceil_div(len(numbers), parts) * page for page, numbers in self.by_page.items())


def _packed(pages: Sequence[Page]) -> tuple[tuple[int, ...], ...]:
    """Groups whose layers lie side by side in each block, of about the same number of pattern repeats.

    A bucket that mixes page sizes evenly sets the fewest repeats a group may have;
    the number that pads least over all even buckets is taken.
    """
    tables: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for number, page in enumerate(pages):
        here = tables.setdefault((_table(page), page.block_tokens), {})
        here.setdefault(page.page_bytes, []).append(number)
    recent = [pages[next(iter(by_page.values()))[0]].kind in _RECORDS for by_page in tables.values()]
    buckets = [_Bucket(by_page, kind) for by_page, kind in zip(tables.values(), recent, strict=True)]
    floor = max((b.repeats for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    repeats = _least_padding([b.repeats for b in buckets if b.balanced], floor) if floor else 0

    def parts(bucket: _Bucket) -> int:
        return ceil_div(bucket.repeats, repeats) if bucket.balanced and repeats else 1

    # Without a repeating pattern, windows are split to fit the block that full layers need anyway.
    split = not repeats
    anchor = max(b.widest(len(b.numbers) if split and b.state_like else parts(b)) for b in buckets)
    groups: list[tuple[int, ...]] = []
    for bucket in buckets:
        count = parts(bucket)
        if split and bucket.state_like:
            fitting = max(anchor // next(iter(bucket.by_page)), 1)
            count = max(count, ceil_div(len(bucket.numbers), fitting))
        if count == 1:
            groups.append(tuple(bucket.numbers))
            continue
        rounds = list(zip(*bucket.by_page.values(), strict=False))
        groups += [
            tuple(number for repeat in rounds[part::count] for number in repeat) for part in range(count)
        ]
    return tuple(groups)


def _least_padding(counts: Sequence[int], lowest: int) -> int:
    """The group size from ``lowest`` up that needs the least padding; the largest of equals."""
    return min(
        range(lowest, max(*counts, lowest) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
    )
