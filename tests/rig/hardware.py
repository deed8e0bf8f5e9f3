"""Whether the engines run on this machine's CPU or on its NVIDIA GPU, and what that changes.

KVCACHE_RIG_GPU=1 asks for the GPU. Nothing here starts anything but nvidia-smi.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping

_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")

# Fewer processes and threads: several cores are not to be had where the CPU engines run.
VLLM_ON_CPU: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    # Else 0.32.0 (utils/ompmultiprocessing.py) wants a NUMA node for every rank.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
SGLANG_ON_CPU: Mapping[str, str] = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
SGLANG_CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph", "--disable-overlap-schedule"),
)
# Without the graph and its capture an engine is up in seconds; the overlap would report a step late.
SGLANG_GPU_FLAGS = ("--grammar-backend", "none", "--disable-cuda-graph", "--disable-overlap-schedule")


class NoGpuError(RuntimeError):
    """A GPU was asked for and there is none."""


def wants_gpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the GPU was asked for."""
    return environment.get("KVCACHE_RIG_GPU", "") not in ("", "0")


def _smi() -> str:
    return subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=60).stdout


def gpu_name(ask: Callable[[], str] = _smi) -> str:
    """The first GPU and its driver, "NVIDIA H200, 580.10"; raises NoGpuError with the reason."""
    try:
        lines = ask().strip().splitlines()
    except FileNotFoundError:
        raise NoGpuError("no nvidia-smi on this machine: no NVIDIA driver is installed") from None
    except subprocess.SubprocessError as error:
        raise NoGpuError(f"nvidia-smi failed: {error}") from None
    if not lines:
        raise NoGpuError("nvidia-smi names no GPU")
    return lines[0].strip()
