"""The cache one decoder layer keeps, before any engine lays it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a layer keeps per token."""

    FULL = "full"  # K and V of every token
    WINDOW = "window"  # K and V of the last window_tokens tokens
    MLA = "mla"  # one latent vector per token, no separate V, shared by all heads


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache: whole-model head count, elements per vector.

    ``kv_heads`` is 1 and ``v_dim`` 0 for MLA, whose ``k_dim`` is the latent plus
    the rotary part (kv_lora_rank + qk_rope_head_dim).  ``window_tokens`` is 0
    unless ``kind`` is WINDOW.
    """

    kind: Kind
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int = 0

    @property
    def keeps_every_token(self) -> bool:
        """True where a longer context always takes more cache."""
        return self.kind is not Kind.WINDOW

    def elements_per_token(self, kv_heads_here: int) -> int:
        """Elements one token takes in this layer on a GPU that holds ``kv_heads_here`` of its heads."""
        return kv_heads_here * (self.k_dim + self.v_dim)
