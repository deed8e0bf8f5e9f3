"""How SGLang lays the caches of a model out: pools of token slots.

Follows SGLang 0.5.23 ``srt/model_executor/pool_configurator.py`` and
``srt/configs/model_config.py``.  A slot holds one token in every layer of its
pool.  One pool keeps every token of every layer, windows or not, except for a
few architectures whose window layers get a pool of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from exporter.kvmath.dtypes import element_bytes
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import (
    Parallelism,
    rank_elements_per_token,
    sglang_pipeline_stages,
    split_problem,
)

# is_hybrid_swa_model() in configs/model_config.py, as far as the families read here go.
_WINDOW_POOL: Final = frozenset(
    {"GptOssForCausalLM", "Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}
)

# Architectures whose MLA models store the latent (_derive_model_shapes() there); any other MLA model is
# either unknown to SGLang or stored some other way.
_LATENT: Final = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekVL2ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "LongcatFlashForCausalLM",
    }
)


# What one pool of token slots can hold; the other kinds have pools of their own in SGLang.
_SLOT_KINDS: Final = frozenset({Kind.FULL, Kind.WINDOW, Kind.MLA})


def _beyond_pools(shape: ModelShape, parallelism: Parallelism) -> Unavailable | None:
    """What the pools below do not cover, or None: decode context ranks, states, indexers, uneven layers."""
    if parallelism.decode_context != 1:
        return Unavailable(Reason.UNSUPPORTED_PARALLELISM, "decode context parallelism")
    for layer in shape.layers:
        if layer.kind not in _SLOT_KINDS:
            return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: {layer.kind} layers")
        if layer.kind is not Kind.MLA and layer.k_dim != layer.v_dim:
            return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: V of another width than K")
    if len({(layer.kv_heads, layer.k_dim) for layer in shape.layers}) > 1:
        return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: layers of different heads")
    if shape.decoder_depth > len(shape.layers):
        return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: layers without a cache")
    if parallelism.pipeline > 1 and shape.depths:
        return Unavailable(
            Reason.UNSUPPORTED_PARALLELISM, f"pipeline stages of {shape.model_type}: several caches per layer"
        )
    return None


@dataclass(frozen=True, slots=True)
class TokenPools:
    """The pools of a model and the bytes of a slot.

    ``page_tokens``: slots are handed out in pages of so many.
    ``full_token_bytes``: one token in all layers of the full pool on one GPU,
    the one with the largest pipeline stage.  ``window_token_bytes``: the same
    for the separate window pool, 0 where there is none.  ``replica_...``: summed
    over all GPUs of the replica, copied heads and latents counted.
    ``bytes_per_token`` and ``device_bytes_per_token``: one token more of a long
    context, replica and largest GPU.
    """

    page_tokens: int
    full_token_bytes: int
    window_token_bytes: int
    window_tokens: int
    replica_full_token_bytes: int
    replica_window_token_bytes: int
    bytes_per_token: int
    device_bytes_per_token: int

    @property
    def uniform(self) -> bool:
        """True where one pool holds everything."""
        return self.window_token_bytes == 0


def sequence_tokens(tokens: int, page_tokens: int) -> int:
    """Slots a sequence of ``tokens`` tokens takes: rounded up to whole pages."""
    return -(-tokens // page_tokens) * page_tokens


def token_pools(
    shape: ModelShape,
    cache_dtype: str,
    page_tokens: int,
    parallelism: Parallelism,
    window_pool: bool = True,
) -> TokenPools | Unavailable:
    """The pools of ``shape`` under SGLang.

    ``cache_dtype`` is resolved (not "auto"); ``page_tokens`` is the server's
    ``page_size``; ``window_pool`` is off under --disable-hybrid-swa-memory.

    ``Unavailable``: KV_CACHE_DTYPE, BLOCK_SIZE, TENSOR_PARALLEL_SIZE and
    PIPELINE_PARALLEL_SIZE for values that fit no engine, UNSUPPORTED_PARALLELISM
    for decode context parallelism, UNSUPPORTED_ATTENTION for models SGLang stores
    in another way than their config says.
    """
    if (problem := split_problem(shape, parallelism) or _beyond_pools(shape, parallelism)) is not None:
        return problem
    if page_tokens < 1:
        return Unavailable(Reason.BLOCK_SIZE, "page size below 1 token")
    size = element_bytes(cache_dtype)
    if isinstance(size, Unavailable):
        return size
    if shape.model_type == "minicpm3":
        return Unavailable(Reason.UNSUPPORTED_ATTENTION, "minicpm3: SGLang stores the latent, vLLM K and V")
    if shape.attention == "mla" and not _LATENT.intersection(shape.architectures):
        return Unavailable(
            Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: not an MLA architecture of SGLang"
        )
    layer_bytes = []
    for layer in shape.layers:
        elements = rank_elements_per_token(layer, parallelism.tensor)
        if isinstance(elements, Unavailable):
            return elements
        layer_bytes.append(elements * size)

    windows = {layer.window_tokens for layer in shape.layers if layer.kind is Kind.WINDOW}
    separate = window_pool and bool(windows) and not _WINDOW_POOL.isdisjoint(shape.architectures)
    if separate and (len(windows) > 1 or shape.attention == "window"):
        # Without full layers max_total_num_tokens counts window slots: no full pool to relate to.
        return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: window pool of an unusual mix")
    in_window_pool = [separate and layer.kind is Kind.WINDOW for layer in shape.layers]
    full, window = [], []
    for stage in sglang_pipeline_stages(len(shape.layers), parallelism.pipeline):
        full.append(sum(layer_bytes[i] for i in stage if not in_window_pool[i]))
        window.append(sum(layer_bytes[i] for i in stage if in_window_pool[i]))
    return TokenPools(
        page_tokens=page_tokens,
        full_token_bytes=max(full),
        window_token_bytes=max(window),
        window_tokens=windows.pop() if separate else 0,
        replica_full_token_bytes=sum(full) * parallelism.tensor,
        replica_window_token_bytes=sum(window) * parallelism.tensor,
        bytes_per_token=sum(full) * parallelism.tensor,
        device_bytes_per_token=max(full),
    )
