"""On the GPU host: does what was unpacked fit what is there?

Imports what vLLM needs, then launches one kernel of each of its libraries and compares with PyTorch. Ends
with the number of problems, each of which is printed. Flash-attention 3 that does not work is a warning: the
engines are then started with Triton's attention, which the file named on the command line is told.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMED = (
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "numpy",
    "vllm",
    "pydantic",
    "prometheus-client",
    "httpx",
)
MODULES = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.entrypoints.openai.api_server",
    "tiktoken",
    "torchvision",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "exporter.cli",
    "pytest_timeout",
)
# Largest difference of bfloat16 results, whose steps are 2^-7 near 1 and whose values reach about 4.
CLOSE = 0.05


def problems() -> Iterator[str]:
    """What does not fit, in words."""
    versions = []
    for name in NAMED:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed"
    print(sys.version.split()[0], *versions)
    for module in MODULES:
        try:
            importlib.import_module(module)
        except Exception as error:
            yield f"import {module}: {error!r}"
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    if not torch.cuda.is_available():
        yield "torch sees no GPU"
        return
    print("GPU:", torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0))
    yield from unlike_pytorch("rms_norm", lambda: rms_norm(torch))


def without_fa3() -> Iterator[str]:
    """Why flash-attention 3 can't be used here; nothing where it can, or where no GPU is to try it on."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]

        importlib.import_module("vllm.vllm_flash_attn._vllm_fa3_C")
    except Exception as error:
        yield f"flash-attention 3 can't be imported: {error!r}"
        return
    if torch.cuda.is_available():
        yield from unlike_pytorch("flash-attention 3", lambda: flash_attention(torch))


def unlike_pytorch(name: str, difference: Callable[[], float]) -> Iterator[str]:
    """What is wrong with a kernel, if anything is."""
    try:
        off = difference()
    except Exception as error:
        yield f"{name}: {error!r}"
        return
    print(f"{name}: largest difference from PyTorch {off:g}")
    if not off <= CLOSE:
        yield f"{name} computes something else than PyTorch"


def rms_norm(torch: Any) -> float:
    """A kernel of vLLM's own operators."""
    ops = importlib.import_module("vllm._custom_ops")
    x = torch.randn(4, 512, dtype=torch.bfloat16, device="cuda")
    out = torch.empty_like(x)
    ops.rms_norm(out, x, torch.ones(512, dtype=torch.bfloat16, device="cuda"), 1e-6)
    right = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return float((out.float() - right).abs().max())


def flash_attention(torch: Any) -> float:
    """A kernel of flash-attention 3: 64 tokens, 16 query heads on 4 key heads."""
    attend = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    query = torch.randn(64, 16, 128, dtype=torch.bfloat16, device="cuda")
    key, value = (torch.randn(64, 4, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    ends = torch.tensor([0, 64], dtype=torch.int32, device="cuda")
    out = attend(
        query, key, value, max_seqlen_q=64, cu_seqlens_q=ends, max_seqlen_k=64, cu_seqlens_k=ends,
        causal=True, fa_version=3,
    )  # fmt: skip
    by_head = (
        t.transpose(0, 1)[None] for t in (query, key.repeat_interleave(4, 1), value.repeat_interleave(4, 1))
    )
    right = torch.nn.functional.scaled_dot_product_attention(*by_head, is_causal=True)[0].transpose(0, 1)
    return float((out.float() - right.float()).abs().max())


def main(environment: Path) -> int:
    """How many problems there are; the shell file `environment` is told what does not work."""
    found = list(problems())
    missing = list(without_fa3())
    for one in missing:
        print("WARNING:", one)
    if missing:
        with environment.open("a") as file:
            file.write("export KVCACHE_RIG_WITHOUT_FA3=1\n")
    for one in found:
        print("PROBLEM:", one)
    return len(found)


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 100))
