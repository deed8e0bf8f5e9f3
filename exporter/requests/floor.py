"""The least time one decode step can take: everything it must read, over the memory bandwidth.

A decode step reads all weights and the cache of every running sequence once.
At the batch sizes of serving nothing else takes longer, so observed ITL over
this floor says how far decode is from the limit of the memory.

It is a floor for dense models.  Of a mixture of experts a step reads only the
experts its tokens go to, so that small batches may be quicker than this; and
weights that the engine quantizes while loading are smaller than their files.
"""

from __future__ import annotations

from exporter.kvmath.hardware import find_gpu
from exporter.kvmath.known import Reason, Unavailable

NOT_TOLD = Unavailable(Reason.GPU_BANDWIDTH, "nobody says what one GPU's memory bandwidth is")


def nvml_gpu_name() -> str | None:
    """The name of this machine's first GPU, where the extra `nvml` is installed and finds one."""
    try:
        import pynvml  # noqa: PLC0415  (optional)
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None  # no driver, or no GPU that we may see
    return name.decode() if isinstance(name, bytes) else str(name)


def gpu_bytes_per_second(said: str | None) -> float | Unavailable:
    """Memory bandwidth of one GPU; ``said``: its name, or the number as text."""
    if not said:
        return NOT_TOLD
    try:
        value = float(said)
    except ValueError:
        found = find_gpu(said)
        if isinstance(found, tuple):
            near = f"; near: {', '.join(found)}" if found else ""
            return Unavailable(
                Reason.GPU_BANDWIDTH, f"{said[:40]!r} is no number of bytes per second and no known GPU{near}"
            )
        return found.bandwidth_bytes_per_second
    if not 0 < value < 1e16:
        return Unavailable(Reason.GPU_BANDWIDTH, f"{value:g} bytes per second")
    return value


def decode_floor_seconds(
    weights_bytes: float | Unavailable,
    live_kv_bytes: float | Unavailable,
    gpu_bytes_per_second: float | Unavailable,
    tensor_ranks: int | Unavailable = 1,
    pipeline_ranks: int | Unavailable = 1,
) -> float | Unavailable:
    """Seconds for one step; the first missing input is the reason where there is none.

    ``weights_bytes`` of the whole model, ``live_kv_bytes`` of all its GPUs.  The
    tensor ranks read at the same time.  A token passes the pipeline's stages one
    after the other, so their weights are read in turn; the running sequences are
    shared out over the stages, so of the cache one share is read per token.
    """
    if isinstance(gpu_bytes_per_second, Unavailable):
        return gpu_bytes_per_second
    if isinstance(weights_bytes, Unavailable):
        return weights_bytes
    if isinstance(live_kv_bytes, Unavailable):
        return live_kv_bytes
    if isinstance(tensor_ranks, Unavailable):
        return tensor_ranks
    if isinstance(pipeline_ranks, Unavailable):
        return pipeline_ranks
    if min(weights_bytes, live_kv_bytes) < 0 or not weights_bytes or min(tensor_ranks, pipeline_ranks) < 1:
        return Unavailable(Reason.OUT_OF_RANGE, "no weights, a negative size or no GPU")
    return (weights_bytes + live_kv_bytes / pipeline_ranks) / (gpu_bytes_per_second * tensor_ranks)


def over_floor(itl_seconds: float | None, floor_seconds: float | Unavailable) -> float | Unavailable:
    """Observed ITL over the floor: 1 is the memory's limit, 3 leaves two thirds of it unused."""
    if isinstance(floor_seconds, Unavailable):
        return floor_seconds
    if itl_seconds is None:
        return Unavailable(Reason.IDLE, "no token came in the last interval")
    return itl_seconds / floor_seconds
