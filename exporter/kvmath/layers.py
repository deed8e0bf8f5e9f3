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
