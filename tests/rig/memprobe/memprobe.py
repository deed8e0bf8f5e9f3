"""A vLLM plugin that writes down what a worker's KV cache really takes, as torch and the driver count it.

It lies on the engine's PYTHONPATH and appends one JSON line per worker to the file named by MEMPROBE_OUT;
without that variable it does nothing. Nothing of the exporter is imported here.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _tensors(held: Any) -> Iterator[Any]:
    """Every tensor inside nested lists, tuples and dicts."""
    if hasattr(held, "untyped_storage"):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from _tensors(value)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from _tensors(value)


# Where a vLLM makes the KV tensors and nothing else: the names of 0.26 (two model runners), those of 0.32.
# Block tables, slot mappings and attention's workspaces are made around them, and are no part of the pool.
_ALLOCATES = (
    ("vllm.v1.worker.gpu.attn_utils", None, "_allocate_kv_cache"),
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "_allocate_kv_cache_tensors"),
    ("vllm.v1.worker.gpu.attn_utils", None, "allocate_kv_cache"),
    ("vllm.v1.worker.gpu_model_runner", None, "allocate_kv_cache"),
)


def _device() -> dict[str, int]:
    """Bytes asked of torch's allocator and given by it, and free by the driver; nothing without a GPU.

    The allocator gives up to 1 MiB more than it was asked for, so what it was asked for is counted too.
    """
    import torch  # type: ignore[import-not-found,unused-ignore]

    if not torch.cuda.is_available():
        return {}
    return {
        "requested": torch.cuda.memory_stats()["requested_bytes.all.current"],
        "allocated": torch.cuda.memory_allocated(),
        "device_free": torch.cuda.mem_get_info()[0],
    }


@contextmanager
def _growth() -> Iterator[dict[str, int]]:
    """What the functions of `_ALLOCATES` took in the block; empty where none was called, or no GPU is."""
    grown: dict[str, int] = {}

    def counted(allocate: Any) -> Any:
        @functools.wraps(allocate)
        def measured(*args: Any, **kwargs: Any) -> Any:
            before = _device()
            result = allocate(*args, **kwargs)
            after = _device()
            for name in before:
                more = before[name] - after[name] if name == "device_free" else after[name] - before[name]
                grown[name] = grown.get(name, 0) + more
            return result

        return measured

    replaced = []
    for module, kind, name in _ALLOCATES:
        # By now the worker has imported the runner that it uses.
        holder: Any = sys.modules.get(module)
        if holder is not None and kind is not None:
            holder = getattr(holder, kind, None)
        allocate = getattr(holder, name, None)
        if allocate is not None:
            replaced.append((holder, name, allocate))
            setattr(holder, name, counted(allocate))
    try:
        yield grown
    finally:
        for holder, name, allocate in replaced:
            setattr(holder, name, allocate)


def _pool(worker: Any) -> dict[str, Any]:
    """The tensors of the pool: layers may share one, so each storage counts once."""
    runner = worker.model_runner
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(runner.kv_caches)
    }
    config = runner.kv_cache_config
    return {
        "num_blocks": config.num_blocks,
        "storages": len(storages),
        "storage_bytes": sum(storages.values()),
        "groups": [
            {
                "kind": type(group.kv_cache_spec).__name__,
                "layers": len(group.layer_names),
                "block_size": group.kv_cache_spec.block_size,
                "page_size_bytes": group.kv_cache_spec.page_size_bytes,
            }
            for group in config.kv_cache_groups
        ],
    }


def register() -> None:
    """What vLLM calls in every one of its processes when it starts."""
    out = os.environ.get("MEMPROBE_OUT")
    if not out:
        return
    from vllm.v1.worker.gpu_worker import Worker  # type: ignore[import-not-found,unused-ignore]

    if getattr(Worker, "_memprobe", False):
        return
    Worker._memprobe = True
    allocate = Worker.initialize_from_config

    @functools.wraps(allocate)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _growth() as grown:
            result = allocate(self, *args, **kwargs)
        told: dict[str, Any] = {"pid": os.getpid()}
        try:
            told |= _pool(self)
            if _device() and not grown:
                told["error"] = "none of the functions that make the KV tensors was called"
        except Exception as error:  # the engine must start whatever a release has renamed
            told["error"] = repr(error)
        if grown:
            told["requested_by_pool"] = grown["requested"]
            told["allocated_by_pool"] = grown["allocated"]
            told["device_free_drop"] = grown["device_free"]
        with open(out, "a") as file:
            file.write(json.dumps(told) + "\n")
        return result

    Worker.initialize_from_config = measured
