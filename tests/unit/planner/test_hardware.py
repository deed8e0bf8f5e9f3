"""GPUs by the names people use."""

from __future__ import annotations

import pytest

from exporter.kvmath.hardware import GPUS, Gpu, find_gpu


@pytest.mark.parametrize(
    ("spelling", "name", "gigabytes", "terabytes_per_second"),
    [
        ("h100", "H100 SXM", 80, 3.35),
        ("H100-80GB", "H100 SXM", 80, 3.35),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 80, 3.35),  # what nvidia-smi calls it
        ("H100 PCIe", "H100 PCIe", 80, 2.0),
        ("NVIDIA H100 NVL", "H100 NVL", 94, 3.9),
        ("H200", "H200", 141, 4.8),
        ("h200 sxm", "H200", 141, 4.8),
        ("A100", "A100 80GB SXM", 80, 2.039),
        ("A100-40GB", "A100 40GB", 40, 1.555),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", 80, 2.039),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", 80, 1.935),
        ("A10", "A10", 24, 0.6),
        ("L4", "L4", 24, 0.3),
        ("L40", "L40", 48, 0.864),
        ("L40S", "L40S", 48, 0.864),
        ("Tesla T4", "T4", 16, 0.32),
        ("rtx4090", "RTX 4090", 24, 1.008),
        ("GeForce RTX 5090", "RTX 5090", 32, 1.792),
        ("4090", "RTX 4090", 24, 1.008),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada", 48, 0.96),
        ("RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Server", 96, 1.597),
        ("AMD Instinct MI300X", "MI300X", 192, 5.3),
        ("mi355x", "MI355X", 288, 8.0),
        ("gaudi3", "Gaudi 3", 128, 3.7),
        ("B200", "B200", 180, 8.0),
    ],
)
def test_spellings(spelling: str, name: str, gigabytes: int, terabytes_per_second: float) -> None:
    """Memory and bandwidth as on the vendors' data sheets."""
    gpu = find_gpu(spelling)
    assert isinstance(gpu, Gpu), gpu
    assert gpu.name == name
    assert gpu.memory_bytes == gigabytes * 10**9
    assert gpu.bandwidth_bytes_per_second == pytest.approx(terabytes_per_second * 10**12)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_own_names(gpu: Gpu) -> None:
    """A name we print is a name we take."""
    assert find_gpu(gpu.name) == gpu


@pytest.mark.parametrize(
    ("name", "near"),
    [("H300", "H200"), ("MI300", "MI300X"), ("RTX", "RTX 4090"), ("H100-40GB", "A100 40GB")],
)
def test_unknown_names_list_near_ones(name: str, near: str) -> None:
    """Another memory size is another part: H100-40GB does not exist."""
    found = find_gpu(name)
    assert isinstance(found, tuple)
    assert near in found


@pytest.mark.parametrize("name", ["", "x", "gpu", "NVIDIA", "80GB", "\x00", "é" * 500])
def test_nonsense(name: str) -> None:
    """Never a part, never a traceback."""
    assert not isinstance(find_gpu(name), Gpu)
