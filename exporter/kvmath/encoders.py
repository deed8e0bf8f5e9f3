"""Encoder-decoder families: decoder layers that also keep K and V of the encoder's tokens."""

from __future__ import annotations

from exporter.kvmath.fields import Fields, bad
from exporter.kvmath.heads import Heads, Names, grouped
from exporter.kvmath.layers import Kind
from exporter.kvmath.stack import Stack, attention, depth


def t5(fields: Fields, names: Names) -> Stack:
    """T5: self and cross attention in every decoder layer, heads of ``d_kv``.

    The encoder is as long as the request's input, which the config can't tell.
    """
    query = fields.count(names.heads)
    heads = Heads(query, query, fields.count(("d_kv",)), fields.count(("d_kv",)))
    return Stack(((attention(heads), attention(heads, 0, Kind.CROSS)),) * depth(fields, names), query)


def whisper(fields: Fields, names: Names) -> Stack:
    """Whisper: self attention over text, cross attention over ``max_source_positions`` a request."""
    query = fields.count(names.heads)
    width = fields.count(names.hidden) // query
    heads = Heads(query, query, width, width)
    if width < 1:
        raise bad("d_model: smaller than the number of heads")
    frames = fields.count_or(("max_source_positions",), 1500)
    return Stack(((attention(heads), attention(heads, frames, Kind.CROSS)),) * depth(fields, names), query)


def mllama(fields: Fields, names: Names) -> Stack:
    """Llama 3.2 Vision: ``cross_attention_layers`` keep the image's tokens instead of the text's."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    crossed = fields.numbers("cross_attention_layers")
    if crossed is None or not all(number < layers for number in crossed):
        raise bad(f"cross_attention_layers: expected numbers below {layers}")
    here = set(crossed)
    return Stack(
        tuple((attention(heads, 0, Kind.CROSS if i in here else None),) for i in range(layers)), heads.query
    )
