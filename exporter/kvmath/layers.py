"""The cache one decoder layer keeps, before any engine lays it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from exporter.kvmath.states import RecurrentState


class Kind(StrEnum):
    """What a layer keeps, in the words of the papers that introduced it."""

    FULL = "full"  # K and V of every token
    WINDOW = "window"  # K and V of the last window_tokens tokens
    CHUNK = "chunk"  # K and V since the last multiple of window_tokens (Llama 4)
    MLA = "mla"  # one latent vector per token, no separate V, shared by all heads
    INDEXER = "indexer"  # keys a sparse attention chooses its tokens by
    COMPRESSED = "compressed"  # one record for every tokens_per_record tokens (DeepSeek V4)
    RECORD_WINDOW = "record_window"  # one record per token, of the last window_tokens tokens (DeepSeek V4)
    RING = "ring"  # float32 inputs of a compressor, of the last window_tokens tokens (DeepSeek V4)
    STATE = "state"  # a recurrent state: the same bytes whatever the length
    CROSS = "cross"  # K and V of the encoder's tokens, once per request


EVERY_TOKEN: Final = frozenset({Kind.FULL, Kind.MLA, Kind.INDEXER, Kind.COMPRESSED})
RECENT_TOKENS: Final = frozenset({Kind.WINDOW, Kind.CHUNK, Kind.RECORD_WINDOW, Kind.RING})


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One cache of a layer: whole-model head count, elements per vector.

    ``kv_heads`` is 1 and ``v_dim`` 0 for one-vector caches (MLA, INDEXER, DeepSeek
    V4's records), whose ``k_dim`` is the whole vector (MLA: kv_lora_rank +
    qk_rope_head_dim).  ``window_tokens``: what the RECENT_TOKENS kinds keep, the
    encoder's length for CROSS (0 where the config does not tell), else 0.
    ``record_bytes``: bytes of one stored vector where the engine's cache dtype
    has no say in it, else 0.  ``state`` is set for STATE alone.
    """

    kind: Kind
    kv_heads: int
    k_dim: int
    v_dim: int
    window_tokens: int = 0
    tokens_per_record: int = 1
    record_bytes: int = 0
    state: RecurrentState | None = None

    def elements_per_token(self, kv_heads_here: int) -> int:
        """Elements one token takes in this layer on a GPU that holds ``kv_heads_here`` of its heads."""
        return kv_heads_here * (self.k_dim + self.v_dim)


def recurrent(state: RecurrentState) -> LayerCache:
    """A layer that keeps ``state`` and nothing per token."""
    return LayerCache(Kind.STATE, 0, 0, 0, state=state)
