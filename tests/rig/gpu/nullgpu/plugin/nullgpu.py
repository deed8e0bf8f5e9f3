"""A vLLM plugin for the null GPU: no kernel runs there, so the samples are written straight into memory."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """What vLLM calls in every one of its processes when it starts."""
    import ctypes

    import numpy as np  # type: ignore[import-not-found,unused-ignore]
    from vllm.v1.worker.gpu.model_runner import (  # type: ignore[import-not-found,unused-ignore]
        GPUModelRunner,
    )

    original = GPUModelRunner.sample
    random = np.random.default_rng(0)

    def write(tensor: Any, values: Any) -> None:
        """Into the tensor's own memory, which is the host's."""
        if tensor is None or tensor.numel() == 0:
            return
        size = tensor.numel() * tensor.element_size()
        memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
        array = np.frombuffer(memory, dtype={8: np.int64, 4: np.int32}[tensor.element_size()])
        array.reshape(tensor.shape)[...] = values

    def sample(self: Any, hidden: Any, batch: Any, grammar: Any) -> Any:
        """One token for each request whose prompt is computed with this step, and for all that decode."""
        out, sampled, rejected = original(self, hidden, batch, grammar)
        count = batch.num_reqs
        write(out.sampled_token_ids, random.integers(10, 1000, out.sampled_token_ids.shape))
        scheduled = np.diff(batch.query_start_loc_np[: count + 1])
        computed, prompt = batch.num_computed_prefill_tokens_np[:count], batch.prefill_len_np[:count]
        tokens = np.zeros(sampled.shape, dtype=np.int64)
        tokens[:count] = computed + scheduled >= prompt
        write(sampled, tokens)
        write(rejected, 0)
        return out, sampled, rejected

    GPUModelRunner.sample = sample
