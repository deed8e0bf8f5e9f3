"""What a sequence's cache holds before any engine lays it out: layer by layer, no blocks, no padding."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from exporter.kvmath.formats import state_bytes, token_bytes
from exporter.kvmath.known import Unavailable
from exporter.kvmath.layers import RECENT_TOKENS, Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.vllm_pages import model_dtype, stored_dtype


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers that are alike, on all tensor-parallel ranks together, copies counted.

    ``bytes_per_token``: one layer's, for every token (within its window, where it
    has one); ``state_bytes``: one layer's, per sequence.
    """

    count: int
    kind: Kind
    bytes_per_token: Fraction
    window_tokens: int
    state_bytes: int


def layer_table(shape: ModelShape, cache_dtype: str, tensor: int = 1) -> tuple[LayerRow, ...] | Unavailable:
    """The model's caches on ``tensor`` ranks, alike ones together, in order of appearance.

    ``cache_dtype`` is resolved (not "auto").  ``Unavailable(KV_CACHE_DTYPE)`` where
    a layer can't be stored in it, TENSOR_PARALLEL_SIZE where it doesn't spread.
    """
    dtype = stored_dtype(shape, cache_dtype)
    if isinstance(dtype, Unavailable):
        return dtype
    alike: dict[LayerCache, int] = {}
    for layer in shape.layers:
        alike[layer] = alike.get(layer, 0) + 1
    rows = []
    for layer, count in alike.items():
        per_token = token_bytes(layer, dtype, tensor)
        state = state_bytes(layer.state, model_dtype(shape, "auto"), tensor) if layer.state else 0
        if isinstance(per_token, Unavailable):
            return per_token
        if isinstance(state, Unavailable):
            return state
        rows.append(LayerRow(count, layer.kind, per_token * tensor, layer.window_tokens, state * tensor))
    return tuple(rows)


def content_bytes(rows: tuple[LayerRow, ...], tokens: int, encoder_tokens: int = 0) -> int:
    """Bytes a sequence of ``tokens`` tokens holds: every token, the last W of a window, the tokens of a
    full chunk at most, a state once, the encoder's ``encoder_tokens`` (or the length the config fixes) of
    cross attention.  Compressed records count as they fill up, rounded up."""
    total = Fraction(0)
    for row in rows:
        if row.kind is Kind.CROSS:
            held = row.window_tokens or encoder_tokens
        elif row.kind in RECENT_TOKENS:
            held = min(tokens, row.window_tokens)
        else:
            held = tokens
        total += row.count * (held * row.bytes_per_token + row.state_bytes)
    return -(-total.numerator // total.denominator)
