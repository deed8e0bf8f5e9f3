"""GPUs people serve on: memory as sold, and memory bandwidth.

Sources are the vendors' data sheets and product pages: NVIDIA "H100", "H200", "HGX
B200 / B300", "GB200 / GB300 NVL72", "A100", "A800", "A10", "A30", "A40", "L4", "L40",
"L40S", "T4", "V100", "RTX PRO 6000 Blackwell", "RTX 6000 Ada", "RTX A6000", "GeForce
RTX 3090 / 4090 / 5090", "GH200"; AMD "Instinct MI210 / MI250X / MI300X / MI325X /
MI350X / MI355X", "Radeon PRO W7900"; Intel "Gaudi 2 / Gaudi 3".  Memory is the GB (10^9)
on the label: what a driver shows may differ by a few per cent either way, so whoever
knows the exact figure gives it instead.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.  ``memory_bytes`` as sold, ``bandwidth_bytes_per_second`` the data sheet's peak."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_second: int


def _gpu(name: str, memory_gb: int, bandwidth_gb_per_second: int) -> Gpu:
    return Gpu(name, memory_gb * 10**9, bandwidth_gb_per_second * 10**9)


# Where a bare name could mean several parts, the first that starts with it is meant (H100: the SXM part).
GPUS: Final = (
    _gpu("H100 SXM", 80, 3350),
    _gpu("H100 PCIe", 80, 2000),
    _gpu("H100 NVL", 94, 3900),
    _gpu("H200", 141, 4800),
    _gpu("H200 NVL", 141, 4800),
    _gpu("H800", 80, 3350),
    _gpu("H20", 96, 4000),
    _gpu("GH200 96GB", 96, 4000),
    _gpu("GH200 144GB", 144, 4900),
    _gpu("B200", 180, 8000),
    _gpu("B300", 288, 8000),
    _gpu("GB200", 186, 8000),
    _gpu("GB300", 288, 8000),
    _gpu("A100 80GB SXM", 80, 2039),
    _gpu("A100 80GB PCIe", 80, 1935),
    _gpu("A100 40GB", 40, 1555),
    _gpu("A800 80GB", 80, 2039),
    _gpu("A10", 24, 600),
    _gpu("A10G", 24, 600),
    _gpu("A30", 24, 933),
    _gpu("A40", 48, 696),
    _gpu("L4", 24, 300),
    _gpu("L20", 48, 864),
    _gpu("L40", 48, 864),
    _gpu("L40S", 48, 864),
    _gpu("T4", 16, 320),
    _gpu("V100 32GB", 32, 900),
    _gpu("V100 16GB", 16, 900),
    _gpu("RTX PRO 6000", 96, 1792),
    _gpu("RTX PRO 6000 Server", 96, 1597),
    _gpu("RTX 6000 Ada", 48, 960),
    _gpu("RTX A6000", 48, 768),
    _gpu("RTX 5090", 32, 1792),
    _gpu("RTX 4090", 24, 1008),
    _gpu("RTX 3090", 24, 936),
    _gpu("MI210", 64, 1638),
    _gpu("MI250X", 128, 3277),
    _gpu("MI250", 128, 3277),
    _gpu("MI300X", 192, 5300),
    _gpu("MI325X", 256, 6000),
    _gpu("MI350X", 288, 8000),
    _gpu("MI355X", 288, 8000),
    _gpu("Radeon PRO W7900", 48, 864),
    _gpu("Gaudi 2", 96, 2450),
    _gpu("Gaudi 3", 128, 3700),
)

_VENDOR_WORDS: Final = {"nvidia", "amd", "intel", "tesla", "geforce", "instinct", "habana", "blackwell"}
_PLAIN_WORDS: Final = {"tensor", "core", "gpu", "generation", "edition", "workstation"}
_MEMORY: Final = re.compile(r"\d+gb")
_FORM: Final = re.compile(r"sxm\d*|pcie|oam")
_MEMORY_TYPE: Final = re.compile(r"hbm\d?e?|gddr\d?x?")


def find_gpu(name: str) -> Gpu | tuple[str, ...]:
    """The GPU people mean by ``name``, or the names nearest to it.

    Case, spaces, dashes and vendor words don't matter: "h100", "H100-80GB",
    "NVIDIA H200", "rtx4090" and "NVIDIA H100 80GB HBM3" are all found.  A memory
    size in the name must be the part's own.
    """
    words = _words(name)
    memory = next((int(w[:-2]) * 10**9 for w in words if _MEMORY.fullmatch(w)), None)
    words = [w for w in words if not _MEMORY.fullmatch(w)]
    plain = [w for w in words if not _FORM.fullmatch(w)]
    # A form factor nobody else of that name has is no contradiction: "H200 SXM", "L4 PCIe".
    for wanted in ("".join(words), "".join(plain)):
        for gpu in GPUS if any(c.isdigit() for c in wanted) else ():
            if wanted in _spellings(gpu.name) and memory in (None, gpu.memory_bytes):
                return gpu
    keys = {"".join(_words(gpu.name)): gpu.name for gpu in GPUS}
    near = difflib.get_close_matches("".join(_words(name)), keys, n=4, cutoff=0.4)
    return tuple(keys[key] for key in near)


def _words(name: str) -> list[str]:
    words = re.sub(r"(\d) gb\b", r"\1gb", re.sub(r"[^a-z0-9]+", " ", name.lower())).split()
    words = [w for w in words if w not in _VENDOR_WORDS | _PLAIN_WORDS and not _MEMORY_TYPE.fullmatch(w)]
    return ["sxm" if w.startswith("sxm") else w for w in words]


def _spellings(name: str) -> set[str]:
    """What a name may be shortened to: its beginnings, and without the leading RTX."""
    words = [w for w in _words(name) if not _MEMORY.fullmatch(w)]
    if words[0] == "rtx":
        return {"".join(words), "".join(words[1:])}
    return {"".join(words[:end]) for end in range(1, len(words) + 1)}
