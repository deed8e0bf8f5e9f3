"""How SGLang divides a budget of bytes over its pools, and how many sequences those hold.

SGLang 0.5.23 ``srt/model_executor/pool_configurator.py`` (``calculate_pool_sizes``)
and ``srt/mem_cache/kv_cache_configurator.py`` (``_handle_max_mamba_cache``,
``resolve_max_num_reqs``).  The engine divides in floating point, and so do we.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from exporter.kvmath.sglang import TokenPools, sequence_tokens

# --swa-full-tokens-ratio and --mamba-full-memory-ratio where nobody says otherwise.
WINDOW_RATIO: Final = 0.8
STATE_RATIO: Final = 0.9
# State slots per running sequence (_calculate_mamba_ratio): its own; with the radix cache also the one it
# keeps locked there (seen: 16 slots used by 8 sequences) and a spare for the change from prefill to decode;
# up to two more to record states in while it decodes (--mamba-radix-cache-strategy extra_buffer).
STATES_WITHOUT_RADIX: Final = 1
STATES_WITH_RADIX: Final = 3
MOST_TRACKING_STATES: Final = 2
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Slots of each pool, padding not counted: tokens that keep all, window tokens, states."""

    full_tokens: int
    window_tokens: int
    state_slots: int


def divide(
    pools: TokenPools,
    device_bytes: int,
    window_ratio: float = WINDOW_RATIO,
    state_ratio: float = STATE_RATIO,
) -> PoolSizes | None:
    """The pools of ``device_bytes`` on one GPU; None where the budget holds none.

    States first: ``state_ratio / (1 + state_ratio)`` of it in whole slots, one of them padding.
    The rest in tokens: rest / (full + ratio x window bytes), rounded down to pages.  The
    padding pages come on top of the budget.  None as well for states alone,
    whose token slots take no bytes and are limited by a setting.
    """
    rest, slots = device_bytes, 0
    if pools.state_bytes:
        budget = device_bytes / _GIB * state_ratio / (1 + state_ratio) * _GIB
        slots = int((budget - pools.state_bytes) // pools.state_bytes)
        rest = int((device_bytes / _GIB - (slots + 1) * pools.state_bytes / _GIB) * _GIB)
        if slots < 1 or not pools.full_token_bytes:
            return None
    page = pools.page_tokens
    rows = int(rest // (pools.full_token_bytes + window_ratio * pools.window_token_bytes)) // page * page
    if rows < 1:
        return None
    window = int(rows * window_ratio) // page * page if pools.window_token_bytes else 0
    return PoolSizes(rows * pools.context_ranks, window, slots)


def window_share(pools: TokenPools, tokens: int) -> int:
    """The most window slots a sequence of ``tokens`` tokens holds once prefill is over.

    A window rounded up to pages, the page being filled, and one page not yet evicted
    (0.5.23 ``mem_cache/common.py`` frees whole pages behind the window).
    """
    page = pools.page_tokens
    held = sequence_tokens(max(pools.window_tokens, page), page) + 2 * page
    return min(sequence_tokens(tokens, page), held)


def sequences_in(sizes: PoolSizes, pools: TokenPools, tokens: int, states_each: int) -> int:
    """Sequences of ``tokens`` tokens that surely fit: the pool that is full first decides.

    ``states_each``: state slots the engine sets aside for one.  Exact unless the window
    pool decides, where sequences may hold a page or two less.
    """
    limits = [sizes.full_tokens // sequence_tokens(tokens, pools.granule_tokens)]
    if pools.window_token_bytes:
        limits.append(sizes.window_tokens // window_share(pools, tokens))
    if pools.state_bytes:
        limits.append(sizes.state_slots // states_each)
    return min(limits)


def states_each(prefix_caching: bool | None, tracking_states: int | None = None) -> tuple[int, int]:
    """The fewest and the most state slots the engine sets aside for a running sequence.

    ``tracking_states``: how many of them record states while it decodes; None where nobody tells.
    """
    if prefix_caching is False:
        return STATES_WITHOUT_RADIX, STATES_WITHOUT_RADIX
    fewest, most = (0, MOST_TRACKING_STATES) if tracking_states is None else (tracking_states,) * 2
    if prefix_caching is None:
        return STATES_WITHOUT_RADIX, STATES_WITH_RADIX + most
    return STATES_WITH_RADIX + fewest, STATES_WITH_RADIX + most


def page_charge(pools: TokenPools, full_token_bytes: int, window_token_bytes: int) -> int:
    """Bytes of a budget that go with one page of the full pool, rounded up to whole ones.

    The page, the window slots for each of its tokens, and the states' part of the
    budget; for planning, where one unit must stand for all pools.
    """
    cell = full_token_bytes + Fraction(str(WINDOW_RATIO)) * window_token_bytes
    if pools.state_bytes:
        cell *= 1 + Fraction(str(STATE_RATIO))
    return math.ceil(cell * pools.page_tokens)


def windows_charge(pools: TokenPools, tokens: int) -> int:
    """Pages whose window slots hold the window of a sequence of ``tokens`` tokens, rounded up."""
    return math.ceil(window_share(pools, tokens) / Fraction(str(WINDOW_RATIO)) / pools.page_tokens)


def states_charge(pools: TokenPools, slots: int, page_bytes: int) -> int:
    """Pages of ``page_bytes`` (:func:`page_charge`) whose budget pays for ``slots`` states, rounded up."""
    ratio = Fraction(str(STATE_RATIO))
    return math.ceil(slots * pools.state_bytes * (1 + ratio) / ratio / page_bytes) if pools.state_bytes else 0
