"""The caches of a whole model, decoder layer by decoder layer, as the readers of a family return them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exporter.kvmath.fields import LAYER_LIMIT, Fields
from exporter.kvmath.heads import Heads, Names
from exporter.kvmath.layers import Kind, LayerCache


@dataclass(frozen=True, slots=True)
class Stack:
    """``layers``: per decoder layer, the caches it owns, in the order the engine creates them; none
    for a layer that keeps nothing or reads another layer's.  ``query_heads`` of the whole model, 0
    without attention."""

    layers: tuple[tuple[LayerCache, ...], ...]
    query_heads: int


StackRule = Callable[[Fields, Names], Stack]


def depth(fields: Fields, names: Names) -> int:
    """Number of decoder layers."""
    return fields.count(names.layers, LAYER_LIMIT)


def attention(heads: Heads, window_tokens: int = 0, kind: Kind | None = None) -> LayerCache:
    """One attention layer's cache: of ``kind``, else a window if ``window_tokens``, else as ``heads``."""
    found = kind or (Kind.WINDOW if window_tokens else heads.kind)
    return LayerCache(found, heads.kv, heads.k_dim, heads.v_dim, window_tokens)
