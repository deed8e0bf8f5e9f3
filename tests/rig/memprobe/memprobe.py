"""A vLLM plugin that writes down what a worker's KV cache really takes, as torch and the driver count it.

It lies on the engine's PYTHONPATH and appends one JSON line per worker to the file named by MEMPROBE_OUT;
without that variable it does nothing. Nothing of the exporter is imported here.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
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


def _device() -> dict[str, int]:
    """Bytes allocated by torch's allocator, and free on the device by the driver; nothing without a GPU."""
    import torch  # type: ignore[import-not-found,unused-ignore]

    if not torch.cuda.is_available():
        return {}
    return {"allocated": torch.cuda.memory_allocated(), "device_free": torch.cuda.mem_get_info()[0]}


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
        before = _device()
        result = allocate(self, *args, **kwargs)
        after = _device()
        told: dict[str, Any] = {"pid": os.getpid()}
        try:
            told |= _pool(self)
        except Exception as error:  # the engine must start whatever a release has renamed
            told["error"] = repr(error)
        if before and after:
            told["allocated_by_pool"] = after["allocated"] - before["allocated"]
            told["device_free_drop"] = before["device_free"] - after["device_free"]
        with open(out, "a") as file:
            file.write(json.dumps(told) + "\n")
        return result

    Worker.initialize_from_config = measured
