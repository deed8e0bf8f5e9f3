"""How an engine splits a model over GPUs, as far as the KV cache is concerned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.kvmath.known import Reason, Unavailable

if TYPE_CHECKING:
    from exporter.kvmath.model import ModelShape


@dataclass(frozen=True, slots=True)
class Parallelism:
    """One replica's GPUs.  Data-parallel replicas are separate engines, each with a copy of all this."""

    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of the replica.  Decode context parallelism reuses the tensor-parallel GPUs."""
        return self.tensor * self.pipeline


def split_problem(shape: ModelShape, parallelism: Parallelism) -> Unavailable | None:
    """Why this split cannot be laid out, or None.  Checks both engines need before any layout."""
    if not shape.layers:
        return Unavailable(Reason.ATTENTION_FREE, f"{shape.model_type}: no layer keeps a KV cache")
    if parallelism.tensor < 1:
        return Unavailable(Reason.TENSOR_PARALLEL_SIZE, "tensor parallel size below 1")
    if not 1 <= parallelism.pipeline <= shape.decoder_depth:
        return Unavailable(
            Reason.PIPELINE_PARALLEL_SIZE, f"{parallelism.pipeline} stages for {shape.decoder_depth} layers"
        )
    return None


def kv_heads_per_rank(kv_heads: int, tensor: int) -> int | Unavailable:
    """KV heads one tensor-parallel rank holds: ``max(1, kv_heads // tensor)``.

    With more ranks than heads each head is copied to several ranks.
    ``Unavailable(TENSOR_PARALLEL_SIZE)`` where neither number divides the
    other: engines refuse to start (vLLM 0.32.0 asserts it layer by layer).
    """
    if tensor < 1 or (kv_heads % tensor and tensor % kv_heads):
        return Unavailable(
            Reason.TENSOR_PARALLEL_SIZE, f"{kv_heads} KV heads do not spread over {tensor} ranks"
        )
    return max(1, kv_heads // tensor)


def pipeline_stages(num_layers: int, pipeline: int) -> list[range]:
    """Layers of every pipeline stage as vLLM splits them (0.32.0 distributed/utils.py ``get_pp_indices``).

    Equal shares; the remainder goes one each to the stages before the last,
    from the back, so that first and last (embeddings) stay small.
    ``VLLM_PP_LAYER_PARTITION`` overrides this on the engine and is not visible
    from outside.  ``1 <= pipeline <= num_layers``.
    """
    share, rest = divmod(num_layers, pipeline)
    sizes = [share + (pipeline - 1 - rest <= stage < pipeline - 1) for stage in range(pipeline)]
    return _ranges(sizes)


def sglang_pipeline_stages(num_layers: int, pipeline: int) -> list[range]:
    """Layers of every pipeline stage as SGLang splits them (0.5.23 srt/distributed/utils.py).

    Equal shares; the remainder goes one each to the last stages.
    ``SGLANG_PP_LAYER_PARTITION`` overrides this.  ``1 <= pipeline <= num_layers``.
    """
    share, rest = divmod(num_layers, pipeline)
    return _ranges([share + (stage >= pipeline - rest) for stage in range(pipeline)])


def _ranges(sizes: list[int]) -> list[range]:
    starts = [sum(sizes[:stage]) for stage in range(len(sizes))]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
