"""How to read one model family's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from exporter.kvmath import drafts, heads, windows
from exporter.kvmath.drafts import DraftRule
from exporter.kvmath.fields import Fields, unsupported
from exporter.kvmath.heads import HeadRule, Names
from exporter.kvmath.layers import Kind
from exporter.kvmath.stack import Stack, StackRule, attention, depth
from exporter.kvmath.windows import WindowRule


@dataclass(frozen=True, slots=True)
class Family:
    """The rules of one family.

    Where all layers have the same heads: ``heads`` and ``windows``, and
    ``caches_per_layer`` 2 where a decoder layer runs attention twice.  Else
    ``stack``, which replaces these three.  ``drafts``: the layers multi-token
    prediction adds.  ``nested_defaults`` are class defaults that count only inside
    a multimodal wrapper, whose text config leaves them out.  ``reads``: the fields of
    ``UNCOVERED`` that the family's own rules read, or that it is known not to use.
    ``cache_dtype``: what the model's code stores whatever "auto" would mean, "" for
    the usual rules.
    """

    heads: HeadRule = heads.grouped
    windows: WindowRule = windows.none
    names: Names = field(default_factory=Names)
    nested_defaults: Mapping[str, int] = field(default_factory=dict)
    caches_per_layer: int = 1
    stack: StackRule | None = None
    drafts: DraftRule = drafts.none
    reads: frozenset[str] = frozenset()
    cache_dtype: str = ""

    def read(self, fields: Fields, model_type: str) -> Stack:
        """The caches of the model ``fields`` describes.  Raises ``Refused``."""
        if self.stack is not None:
            return self.stack(fields, self.names)
        count = depth(fields, self.names)
        found = self.heads(fields, self.names)
        spans = self.windows(fields, count)
        if found.kind is Kind.MLA and any(spans):
            raise unsupported(f"{model_type}: sliding_window on a latent cache")
        layers = tuple((attention(found, span),) * self.caches_per_layer for span in spans)
        return Stack(layers, found.query)


# A value (not null, false, 0 or empty) in one of these changes the cache in a way not covered here,
# whatever the family.
UNCOVERED: Final = (
    "add_cross_attention",
    "attention_chunk_size",
    "block_configs",
    "compress_ratios",
    "cross_attention_layers",
    "full_attention_interval",
    "global_head_dim",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_head_dim",
    "index_topk",
    "interleaved_sliding_window",
    "is_encoder_decoder",
    "is_hybrid_swa",
    "layers_block_type",
    "linear_attn_config",
    "loop_num",
    "num_kv_shared_layers",
    "num_loops",
    "per_layer_config",
    "rswa_window",
    "sparse_attention_config",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "use_bidirectional_attention",
)
