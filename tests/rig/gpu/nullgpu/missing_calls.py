"""missing_calls.py SOURCES TORCH_LIB SITE: C stubs that return 0, for CUDA calls the sources do not define.

Asked for are the calls that torch's and vLLM's libraries leave undefined.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_DEFINED = re.compile(r"\b(__cuda\w+|cuda[A-Z]\w*|cu[A-Z]\w*|cublas\w+)\s*\([^;{]*\)\s*\{")
_CALL = re.compile(r"(__cuda|cuda[A-Z]|cu[A-Z]|cublas)")
_TORCH = (
    *("libtorch_cuda.so", "libc10_cuda.so", "libtorch_python.so", "libtorch_cuda_linalg.so"),
    *("libtorch_nvshmem.so", "libcaffe2_nvrtc.so"),
)
# Looked up by name while running, by Triton's launcher among others.
_BY_NAME = (
    *("cuCtxSetLimit", "cuFuncSetAttribute", "cuFuncSetCacheConfig", "cuTensorMapEncodeTiled"),
    *("cuLaunchKernelEx", "cuCtxSetCurrent", "cuModuleUnload", "cuLaunchKernel", "cuGetProcAddress"),
    "cudaGraphExecUpdate",
)


def undefined(library: Path) -> Iterable[str]:
    """The CUDA calls that a library leaves to others."""
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=False
    )
    for line in symbols.stdout.splitlines():
        name = line.split()[-1].split("@")[0] if line.split() else ""
        if _CALL.match(name):
            yield name


def main() -> None:
    """Print the stubs."""
    sources, torch, site = (Path(argument) for argument in sys.argv[1:])
    defined = {name for path in sources.glob("cuda_*.c") for name in _DEFINED.findall(path.read_text())}
    libraries = [torch / name for name in _TORCH]
    libraries += [*site.glob("vllm/*.so"), *site.glob("vllm/vllm_flash_attn/*.so")]
    asked = {name for library in libraries for name in undefined(library)} | set(_BY_NAME)
    for name in sorted(asked - defined):
        print(f"int {name}() {{ return 0; }}")


if __name__ == "__main__":
    main()
