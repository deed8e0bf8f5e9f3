"""unpack_vllm.py WHEEL SITE: unpack vLLM, of its compiled parts only those that a Hopper GPU needs here.

Left out: flash-attention 2 (it has no code for sm_90), the Rust front end, DeepGEMM and the kernels for
sm_100 with their headers, qutlass.
"""

from __future__ import annotations

import sys
import zipfile

COMPILED = {
    "vllm/_C_stable_libtorch.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/_flashmla_C.abi3.so",
    "vllm/_flashmla_extension_C.abi3.so",
    "vllm/_rust_tool_parser.abi3.so",
    "vllm/cumem_allocator.abi3.so",
    "vllm/fs_io_C.abi3.so",
    "vllm/spinloop.abi3.so",
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so",
}
LEFT_OUT = ("vllm/third_party/deep_gemm/", "vllm/third_party/fmha_sm100/")


def wanted(name: str) -> bool:
    """Whether that entry of the wheel is unpacked."""
    if name.endswith(".so") or name == "vllm/vllm-rs":
        return name in COMPILED
    return not name.startswith(LEFT_OUT)


def main() -> None:
    """Unpack; ends with a message where the wheel lacks a part."""
    wheel, site = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if wanted(name)]
        if missing := COMPILED - set(names):
            sys.exit(f"{wheel} has no {', '.join(sorted(missing))}")
        for name in names:
            archive.extract(name, site)


if __name__ == "__main__":
    main()
