"""Blocks of a laid-out model: what a sequence holds and what admits it, group by group.

All groups draw block ids from one pool, so every block takes the bytes of the
largest group.  Counting follows vLLM 0.32.0
v1/core/single_type_kv_cache_manager.py (held) and v1/kv_cache_interface.py (admission).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from exporter.kvmath.layers import EVERY_TOKEN, RECENT_TOKENS, Kind

# Block sizes whose common period is longer than this are not searched for the joint peak.
_LONGEST_PERIOD: Final = 1 << 16


def ceil_div(tokens: int, unit: int) -> int:
    """tokens / unit, rounded up."""
    return -(-tokens // unit)


@dataclass(frozen=True, slots=True)
class GroupPart:
    """Layers of one group that are alike: how many, what they keep, one layer's page and the data in it.

    ``page_bytes - data_bytes`` is padding.  Both on one GPU.
    """

    kind: Kind
    layers: int
    page_bytes: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table.

    ``layers`` counts the whole model, not one pipeline stage.  ``window_tokens``:
    the window, the chunk or the encoder's length, 0 for the other kinds.
    ``block_tokens``: tokens of a block on one rank; ``ranks_per_block``
    decode-context ranks share them out, so a block spans the product.
    ``page_bytes``: one layer's share of one block on one GPU; where ``mixed``,
    layers of different pages, all layers together.  States: ``spare_blocks`` are
    held for draft tokens, ``prefix_cached`` keeps the previous block's state while
    the next begins, ``checkpoint_blocks`` more are reserved at admission.
    ``retained_tokens``: kept beyond a window for draft modules.
    """

    kind: Kind
    layers: int
    window_tokens: int
    block_tokens: int
    page_bytes: int
    mixed: bool = False
    ranks_per_block: int = 1
    spare_blocks: int = 0
    checkpoint_blocks: int = 0
    prefix_cached: bool = True
    retained_tokens: int = 0
    parts: tuple[GroupPart, ...] = ()

    @property
    def span(self) -> int:
        """Tokens of the context one block stands for."""
        return self.block_tokens * self.ranks_per_block

    @property
    def moves(self) -> bool:
        """True where the blocks held depend on the length."""
        return self.kind is not Kind.CROSS and (self.kind is not Kind.STATE or self.prefix_cached)

    def _given_back(self, tokens: int) -> int:
        """Tokens no longer needed once ``tokens`` are computed: before the window, the chunk, the state."""
        match self.kind:
            case Kind.WINDOW | Kind.RECORD_WINDOW | Kind.RING:
                return max(0, tokens - self.window_tokens - self.retained_tokens)
            case Kind.CHUNK:
                return (tokens - 1) // self.window_tokens * self.window_tokens
            case Kind.STATE:
                return max(0, tokens - 2)
            case _:
                return 0

    def resident_blocks(self, tokens: int) -> int:
        """Blocks a running sequence of exactly ``tokens`` computed tokens holds, prefill over.

        ceil(L / B) less the blocks that lie wholly before what is still needed: a
        window gives back floor((L - W) / B).  A state is one block, two while the
        first token of a new block is computed; without prefix caching always one.
        Cross attention holds its encoder's ceil(E / B).
        """
        if self.kind is Kind.CROSS:
            return ceil_div(self.window_tokens, self.span)
        if self.kind is Kind.STATE and not self.prefix_cached:
            return 1 + self.spare_blocks
        return ceil_div(tokens, self.span) - self._given_back(tokens) // self.span + self.spare_blocks

    def peak_blocks(self, tokens: int) -> int:
        """The most blocks a sequence holds at any length up to ``tokens``, prefill over.

        A window starts anywhere in a block, so it touches up to
        ceil((W + B - 1) / B) of them: a length just short of a block boundary
        holds one more than the boundary itself.
        """
        match self.kind:
            case Kind.WINDOW | Kind.RECORD_WINDOW | Kind.RING:
                kept = self.window_tokens + self.retained_tokens
                return ceil_div(min(tokens, kept + self.span - 1), self.span)
            case Kind.CHUNK:
                return self._chunk_peak(tokens)
            case Kind.STATE if self.prefix_cached:
                return min(2, ceil_div(tokens, self.span)) + self.spare_blocks
            case _:
                return self.resident_blocks(tokens)

    def _chunk_peak(self, tokens: int) -> int:
        """The fullest chunk: one that starts inside a block touches one more than an aligned one.

        Where chunks start repeats after B / gcd(B, C) of them.
        """
        chunk, span = self.window_tokens, self.span
        starts = min((tokens - 1) // chunk, span // math.gcd(span, chunk)) + 1
        return max(
            ceil_div(min((number + 1) * chunk, tokens), span) - number * chunk // span
            for number in range(starts)
        )

    def admission_blocks(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks vLLM reserves to admit a sequence of up to ``tokens`` tokens.

        Every token kept: ceil(L / B).  Window: ceil(min(W - 1 + batched, L) / B) + 1
        and chunk: ceil(min(C + batched, L) / B), for during prefill blocks are given
        back one step late.  State: 2 with prefix caching, else 1, and those for
        drafts and checkpoints.  ``max_num_batched_tokens`` is what may be in flight
        at once: with asynchronous scheduling or pipeline stages, steps overlap and
        the engine counts one batch for each (0.32.0 config/vllm.py
        ``max_in_flight_tokens``).
        """
        match self.kind:
            case Kind.WINDOW | Kind.RECORD_WINDOW | Kind.RING:
                kept = self.window_tokens - 1 + self.retained_tokens + max_num_batched_tokens
                return ceil_div(min(kept, tokens), self.span) + 1
            case Kind.CHUNK:
                return ceil_div(min(self.window_tokens + max_num_batched_tokens, tokens), self.span)
            case Kind.STATE:
                cached = 1 + self.checkpoint_blocks if self.prefix_cached else 0
                return 1 + cached + self.spare_blocks
            case _:
                return self.resident_blocks(tokens)

    @property
    def description(self) -> str:
        """What the group is, for ``explain``: layers, kinds, pages, padding."""
        what = (
            " + ".join(
                f"{part.layers} {part.kind} x {part.page_bytes:,} bytes"
                + (
                    f" ({part.page_bytes - part.data_bytes:,} padding)"
                    if part.page_bytes > part.data_bytes
                    else ""
                )
                for part in self.parts
            )
            or f"{self.layers} {self.kind} x {self.page_bytes:,} bytes"
        )
        match self.kind:
            case Kind.STATE:
                held = 1 + self.spare_blocks
                return f"{what}; {held} block{'s' if held > 1 else ''} a sequence whatever its length"
            case Kind.CROSS:
                return f"{what}; {self.window_tokens:,} encoder tokens, blocks of {self.span:,}"
            case Kind.CHUNK:
                reach = f", chunks of {self.window_tokens:,}"
            case _:
                reach = f", window {self.window_tokens:,}" if self.window_tokens else ""
        return f"{what}; blocks of {self.span:,} tokens{reach}"


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The groups of a model and the bytes of a block.

    ``block_bytes``: one block on one GPU, the one with the largest pipeline
    stage.  ``replica_block_bytes``: one block id summed over all GPUs of the
    replica, copied heads and latents counted as often as they are stored.
    ``bytes_per_token``: one token more of a long context, all GPUs of the
    replica, copies counted, padding not: only layers stored for every token, so
    0 where all layers are windowed or keep states; a fraction where records are
    shared by several tokens or ranks.  ``device_bytes_per_token``: the same on one
    GPU, the largest stage.  ``block_tokens``: the engine's block size, raised for
    hybrids.  ``state_bytes_per_sequence``: recurrent states of one sequence, all
    GPUs, padding not counted; ``device_...`` one GPU, the largest stage.
    ``overridden``: the figures a user set by hand instead of the model's config.
    """

    groups: tuple[CacheGroup, ...]
    block_bytes: int
    replica_block_bytes: int
    bytes_per_token: float
    device_bytes_per_token: float
    block_tokens: int = 0
    state_bytes_per_sequence: int = 0
    device_state_bytes_per_sequence: int = 0
    overridden: tuple[str, ...] = ()

    @property
    def single_full_group(self) -> bool:
        """True where used blocks times block size counts tokens: one group that keeps every token."""
        return len(self.groups) == 1 and self.groups[0].kind in EVERY_TOKEN

    @property
    def counts_in_flight(self) -> bool:
        """True where admission depends on the tokens scheduled at once: windows and chunks."""
        return any(group.kind in RECENT_TOKENS for group in self.groups)

    def resident_blocks(self, tokens: int) -> int:
        """Blocks a running sequence of exactly ``tokens`` tokens holds, all groups."""
        return sum(group.resident_blocks(tokens) for group in self.groups)

    def peak_blocks(self, tokens: int) -> int:
        """The most blocks a sequence holds at any one length up to ``tokens``, prefill over, all groups.

        Groups gain a block one token into it, so only such lengths can be the fullest:
        those of the last common period of all block sizes, for full groups never
        shrink, and those before the end of a chunk, which is given back whole.
        """
        moving = [group for group in self.groups if group.moves]
        period = math.lcm(*(group.span for group in moving))
        if period > _LONGEST_PERIOD:
            return sum(group.peak_blocks(tokens) for group in self.groups)
        ends = {tokens}
        for chunk in (group for group in moving if group.kind is Kind.CHUNK):
            last = tokens // chunk.window_tokens
            phases = chunk.span // math.gcd(chunk.span, chunk.window_tokens)
            ends |= {number * chunk.window_tokens for number in range(max(1, last - phases + 1), last + 1)}
        lengths = set(ends)
        for end in ends:
            first = max(0, end - period)
            for span in {group.span for group in moving}:
                lengths.update(range(ceil_div(first, span) * span + 1, end + 1, span))
        return max(self.resident_blocks(length) for length in lengths)

    def admission_blocks(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks vLLM reserves to admit a sequence of up to ``tokens`` tokens, all groups."""
        return sum(group.admission_blocks(tokens, max_num_batched_tokens) for group in self.groups)
