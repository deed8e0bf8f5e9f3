"""Figures a user sets by hand where the model's config does not tell them, or tells them wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from exporter.kvmath.blocks import BlockLayout, CacheGroup, GroupPart
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind
from exporter.kvmath.parallel import Parallelism


@dataclass(frozen=True, slots=True)
class Override:
    """A cache in three numbers; None: not set.

    ``bytes_per_token``: all layers, all GPUs of the replica, copies counted.
    ``state_bytes_per_sequence``: likewise, whatever the length.  ``window_tokens``:
    only so many tokens are kept.
    """

    bytes_per_token: float | None = None
    state_bytes_per_sequence: int | None = None
    window_tokens: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The figures that are set, for ``explain``."""
        return tuple(name for name in self.__dataclass_fields__ if getattr(self, name) is not None)

    @property
    def problem(self) -> Unavailable | None:
        """Why these figures make no cache, or None."""
        token, state, window = self.bytes_per_token, self.state_bytes_per_sequence, self.window_tokens
        reason = ""
        if token is not None and not (math.isfinite(token) and token >= 0):
            reason = "bytes_per_token: expected a number of at least 0"
        elif state is not None and state < 0:
            reason = "state_bytes_per_sequence: below 0"
        elif window is not None and window < 1:
            reason = "window_tokens: below 1"
        elif window is not None and not token:
            reason = "window_tokens: needs bytes_per_token"
        elif not token and not state:
            reason = "bytes_per_token or state_bytes_per_sequence: one must be set"
        return Unavailable(Reason.BAD_MODEL_CONFIG, f"override: {reason}") if reason else None

    def layout(
        self, block_tokens: int, parallelism: Parallelism, prefix_caching: bool = True
    ) -> BlockLayout | Unavailable:
        """The blocks of such a cache: a group per token (or window), a group of the state.

        As vLLM does it, the block is raised until its page holds the state.  The
        GPUs of the replica share alike; what does not divide is rounded up.
        """
        if (problem := self.problem) is not None:
            return problem
        if block_tokens < 1:
            return Unavailable(Reason.BLOCK_SIZE, "block size below 1 token")
        gpus = parallelism.gpus
        per_token = Fraction(self.bytes_per_token or 0)
        state = self.state_bytes_per_sequence or 0
        window = self.window_tokens or 0
        device_state = -(-state // gpus)
        if per_token and state:
            block_tokens *= max(1, math.ceil(Fraction(device_state) / (per_token * block_tokens / gpus)))
        page = math.ceil(per_token * block_tokens / gpus)
        block = max(page, device_state)
        groups = []
        if per_token:
            kind = Kind.WINDOW if window else Kind.FULL
            groups.append(_group(kind, window, block_tokens, block, page, prefix_caching))
        if state:
            groups.append(_group(Kind.STATE, 0, block_tokens, block, device_state, prefix_caching))
        marginal = Fraction(0) if window else per_token
        return BlockLayout(
            groups=tuple(groups),
            block_bytes=block,
            replica_block_bytes=block * gpus,
            bytes_per_token=float(marginal) if marginal.denominator > 1 else marginal.numerator,
            device_bytes_per_token=float(marginal / gpus),
            block_tokens=block_tokens,
            state_bytes_per_sequence=state,
            device_state_bytes_per_sequence=device_state,
            overridden=self.names,
        )


def _group(
    kind: Kind, window: int, block_tokens: int, page: int, data: int, prefix_caching: bool
) -> CacheGroup:
    return CacheGroup(
        kind,
        1,
        window,
        block_tokens,
        page,
        prefix_cached=prefix_caching,
        parts=(GroupPart(kind, 1, page, data),),
    )
