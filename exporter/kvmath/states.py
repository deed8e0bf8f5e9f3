"""Recurrent states: what a layer without a token cache keeps of a sequence.

Every kind in use is a short convolution's last inputs beside one temporal
(SSM) matrix per head, either of which may be missing.  Shapes as in vLLM
0.32.0 model_executor/layers/mamba/mamba_utils.py; names of the papers.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.kvmath.known import Reason, Unavailable


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """One layer's state for one sequence, whole model, in elements.

    Convolution: ``conv_rows`` x (``conv_width`` + ``groups`` x ``group_width``);
    the groups are Mamba 2's B and C.  Temporal: ``heads`` x ``head_elements``.
    The convolution is stored in the model's dtype, the temporal part in
    ``temporal_dtype``, "" for the same.  ``drafts_lengthen_conv``: speculative
    decoding adds a row per draft token.
    """

    name: str
    conv_rows: int = 0
    conv_width: int = 0
    groups: int = 0
    group_width: int = 0
    heads: int = 0
    head_elements: int = 0
    temporal_dtype: str = ""
    drafts_lengthen_conv: bool = False

    def conv_elements(self, tensor: int, draft_tokens: int = 0) -> int | Unavailable:
        """Convolution elements on one of ``tensor`` ranks.

        Groups that do not divide over the ranks are copied until they do
        (n groups become n + (tensor - n)).
        """
        groups = self.groups if self.groups % tensor == 0 else tensor
        width = self.conv_width + groups * self.group_width
        if width % tensor:
            return _uneven(self.name, "convolution channels", width, tensor)
        rows = self.conv_rows + (draft_tokens if self.drafts_lengthen_conv else 0)
        return rows * width // tensor if self.conv_rows else 0

    def temporal_elements(self, tensor: int) -> int | Unavailable:
        """Temporal elements on one of ``tensor`` ranks: whole heads."""
        if self.heads % tensor:
            return _uneven(self.name, "heads", self.heads, tensor)
        return self.heads // tensor * self.head_elements


def _uneven(name: str, what: str, count: int, tensor: int) -> Unavailable:
    return Unavailable(
        Reason.TENSOR_PARALLEL_SIZE, f"{name}: {count} {what} do not spread over {tensor} ranks"
    )


def mamba1(intermediate: int, state_size: int, conv_kernel: int) -> RecurrentState:
    """Mamba: (d_conv - 1) x d_inner, and d_inner x d_state."""
    return RecurrentState(
        "mamba",
        conv_rows=conv_kernel - 1,
        conv_width=intermediate,
        heads=intermediate,
        head_elements=state_size,
    )


def mamba2(
    heads: int,
    head_dim: int,
    groups: int,
    state_size: int,
    conv_kernel: int,
    intermediate: int,
    temporal_dtype: str = "",
) -> RecurrentState:
    """Mamba 2: (d_conv - 1) x (d_inner + 2 x n_groups x d_state), and heads x head_dim x d_state."""
    return RecurrentState(
        "mamba2",
        conv_rows=conv_kernel - 1,
        conv_width=intermediate,
        groups=groups,
        group_width=2 * state_size,
        heads=heads,
        head_elements=head_dim * state_size,
        temporal_dtype=temporal_dtype,
        drafts_lengthen_conv=True,
    )


def gated_delta_net(
    key_heads: int, key_dim: int, value_heads: int, value_dim: int, conv_kernel: int, temporal_dtype: str
) -> RecurrentState:
    """Gated delta net: (kernel - 1) x (Q + K + V channels), and value heads x value_dim x key_dim."""
    return RecurrentState(
        "gated_delta_net",
        conv_rows=conv_kernel - 1,
        conv_width=2 * key_heads * key_dim + value_heads * value_dim,
        heads=value_heads,
        head_elements=value_dim * key_dim,
        temporal_dtype=temporal_dtype,
        drafts_lengthen_conv=True,
    )


def kimi_delta(heads: int, head_dim: int, conv_kernel: int) -> RecurrentState:
    """Kimi delta attention: (kernel - 1) x 3 x heads x head_dim, and heads x head_dim^2 in float32."""
    return RecurrentState(
        "kimi_delta",
        conv_rows=conv_kernel - 1,
        conv_width=3 * heads * head_dim,
        heads=heads,
        head_elements=head_dim * head_dim,
        temporal_dtype="float32",
        drafts_lengthen_conv=True,
    )


def short_convolution(width: int, kernel: int) -> RecurrentState:
    """LFM2's short convolution: (L_cache - 1) x width."""
    return RecurrentState("short_conv", conv_rows=kernel - 1, conv_width=width)


def lightning(heads: int, head_dim: int) -> RecurrentState:
    """Lightning (linear) attention: heads x head_dim^2 in float32."""
    return RecurrentState(
        "lightning", heads=heads, head_elements=head_dim * head_dim, temporal_dtype="float32"
    )


def linear_recurrent_unit(width: int, conv_kernel: int) -> RecurrentState:
    """RG-LRU (Griffin): (kernel - 1) x width, and width in float32."""
    return RecurrentState(
        "rg_lru",
        conv_rows=conv_kernel - 1,
        conv_width=width,
        heads=width,
        head_elements=1,
        temporal_dtype="float32",
    )


def rwkv5(hidden: int, head_size: int) -> RecurrentState:
    """RWKV 5: two token-shift vectors, and heads x head_size^2 in float32."""
    return RecurrentState(
        "rwkv5",
        conv_rows=2,
        conv_width=hidden,
        heads=hidden // head_size,
        head_elements=head_size * head_size,
        temporal_dtype="float32",
    )
