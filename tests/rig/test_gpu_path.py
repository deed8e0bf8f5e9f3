"""Everything of the GPU path up to the device: commands, scripts, lists, and a clear word where no GPU is."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from . import hardware
from .engine import Engine, without_flash_attention
from .gpu import check_site
from .gpu.slim_so import slim
from .gpu.unpack_vllm import wanted
from .sglang_engine import SglangEngine
from .truth import CPU_MODELS, DEEPSEEK_V2_GPU, GPU_MODELS, LLAMA_GIBIBYTE

RIG = Path(__file__).parent
ROOT = RIG.parents[1]
SCRIPTS = sorted([*RIG.glob("*.sh"), *RIG.glob("gpu/**/*.sh")])


def without_gpu(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has no nvidia-smi."""
    for program in ("bash", "env", "dirname", "cat", "mkdir", "sed"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    return {"PATH": str(tmp_path), "HOME": str(tmp_path), "KVCACHE_RIG_CACHE": str(tmp_path / "cache")}


@pytest.mark.parametrize("script", ["vllm_gpu.sh", "sglang_gpu.sh"])
def test_without_a_gpu_nothing_is_fetched(script: str, tmp_path: Path) -> None:
    """It says so and fails, before gigabytes are on their way."""
    ended = subprocess.run(
        ["bash", str(RIG / script)], env=without_gpu(tmp_path), capture_output=True, text=True, check=False
    )

    assert ended.returncode != 0
    assert "no NVIDIA GPU can be used here" in ended.stderr
    assert ended.stdout == ""
    assert not (tmp_path / "cache").exists()


def test_a_run_that_asks_for_a_gpu_fails_without_one(tmp_path: Path) -> None:
    """A green run without a GPU would be a lie: it ends at once, with a reason."""
    environment = {**os.environ, "KVCACHE_RIG_GPU": "1", "PATH": str(tmp_path), "KVCACHE_RIG": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/rig/test_vllm.py"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 1, ended.stdout
    assert "KVCACHE_RIG_GPU=1, but no nvidia-smi on this machine" in ended.stdout + ended.stderr


def test_what_nvidia_smi_says_becomes_a_name_or_a_reason() -> None:
    """The first GPU's name and driver; a driver that does not answer is a reason, no crash."""
    assert hardware.gpu_name(lambda: "NVIDIA H200, 580.10\nNVIDIA H200, 580.10\n") == "NVIDIA H200, 580.10"
    with pytest.raises(hardware.NoGpuError, match="names no GPU"):
        hardware.gpu_name(lambda: "\n")

    def broken() -> str:
        raise subprocess.CalledProcessError(9, ["nvidia-smi"])

    with pytest.raises(hardware.NoGpuError, match="exit status 9"):
        hardware.gpu_name(broken)


@pytest.mark.parametrize(("asked", "wanted_gpu"), [("1", True), ("0", False), ("", False)])
def test_the_gpu_is_asked_for_by_one_variable(asked: str, wanted_gpu: bool) -> None:
    """make rig leaves it empty without GPU=1."""
    assert hardware.wants_gpu({"KVCACHE_RIG_GPU": asked}) is wanted_gpu


def test_engines_are_started_for_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a GPU nothing of what a CPU needs is left in the commands, and added flags come last."""
    monkeypatch.setenv("KVCACHE_RIG_VLLM_FLAGS", "--attention-backend TRITON_ATTN")

    def built() -> tuple[list[str], dict[str, str], list[str], dict[str, str]]:
        vllm = Engine(Path("python"), tmp_path / "llama", tmp_path / "log", kv_cache_bytes=1)
        sglang = SglangEngine(Path("python"), tmp_path / "llama", tmp_path / "log")
        return vllm._command, vllm._environment, sglang._command, sglang._environment

    monkeypatch.setenv("KVCACHE_RIG_GPU", "1")
    vllm, vllm_environment, sglang, sglang_environment = built()
    assert vllm[-2:] == ["--attention-backend", "TRITON_ATTN"]
    assert not set(hardware.VLLM_ON_CPU) & set(vllm_environment)
    assert "cpu" not in sglang
    assert not {"SGLANG_USE_CPU_ENGINE", "PYTHONPATH"} & set(sglang_environment)

    monkeypatch.setenv("KVCACHE_RIG_GPU", "")
    _, vllm_environment, sglang, sglang_environment = built()
    assert set(hardware.VLLM_ON_CPU) <= set(vllm_environment)
    assert sglang[sglang.index("--device") + 1] == "cpu"
    assert sglang_environment["PYTHONPATH"].endswith("stubs")


@pytest.mark.parametrize(
    ("config", "backend"),
    [
        ({"num_key_value_heads": 2}, "TRITON_ATTN"),
        ({"kv_lora_rank": 512}, "TRITON_MLA"),
        ({"text_config": {"kv_lora_rank": 512}}, "TRITON_MLA"),
    ],
)
def test_without_flash_attention_each_model_has_its_backend(
    config: dict[str, object], backend: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One flag for all would not start: vLLM refuses Triton's usual backend to an MLA model."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.delenv("KVCACHE_RIG_WITHOUT_FA3", raising=False)
    assert without_flash_attention(tmp_path) == ()

    monkeypatch.setenv("KVCACHE_RIG_WITHOUT_FA3", "1")
    assert without_flash_attention(tmp_path) == ("--attention-backend", backend)


def test_a_host_without_flash_attention_is_warned_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither torch nor vLLM is here, so that its import fails: that one failure is no problem."""
    monkeypatch.setattr(check_site, "problems", lambda: iter(()))

    assert check_site.main(tmp_path / "env.sh") == 0
    assert "WARNING: flash-attention 3 can't be imported" in capsys.readouterr().out
    assert (tmp_path / "env.sh").read_text() == "export KVCACHE_RIG_WITHOUT_FA3=1\n"


def test_an_engine_sizes_its_own_pool_where_no_bytes_are_given(tmp_path: Path) -> None:
    """By profiling, as most are run."""
    engine = Engine(Path("python"), tmp_path / "llama", tmp_path / "log", kv_cache_bytes=0)
    assert "--kv-cache-memory-bytes" not in engine._command


def test_an_engine_installed_by_hand_keeps_its_surroundings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Offline hosts unpack vLLM beside their own packages: PYTHONPATH leads there."""
    monkeypatch.setenv("PYTHONPATH", "/unpacked")
    engine = Engine(Path("python"), tmp_path / "llama", tmp_path / "log", kv_cache_bytes=1)
    assert "PYTHONPATH" not in engine._environment

    monkeypatch.setenv("KVCACHE_RIG_VLLM_PYTHON", "/usr/bin/python3")
    engine = Engine(Path("python"), tmp_path / "llama", tmp_path / "log", kv_cache_bytes=1)
    engine.measure_memory()
    assert engine._environment["PYTHONPATH"] == f"{RIG / 'memprobe'}:/unpacked"


@pytest.mark.parametrize("model", [*CPU_MODELS, *GPU_MODELS, LLAMA_GIBIBYTE], ids=lambda model: model.name)
def test_the_sums_by_hand_are_consistent(model: object) -> None:
    """Blocks times bytes fill the pool but for less than a block, and no sequence more fits than said."""
    assert isinstance(model, type(DEEPSEEK_V2_GPU))
    assert 0 < model.kv_cache_bytes - model.num_blocks * model.block_bytes < model.block_bytes
    for context, fit in model.fits.items():
        assert fit == model.usable_blocks // model.peak_blocks(context)
    # Who forgets the null block predicts a sequence of 512 tokens too many.
    assert model.num_blocks // model.peak_blocks(512) == model.fits[512] + 1


# -- the offline kit ------


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    """Sourced files included."""
    ended = subprocess.run(
        ["shellcheck", "-x", "-P", "SCRIPTDIR", str(script)], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("script", ["gpu/run.sh", "gpu/make_parts.sh", "gpu/nullgpu/run.sh"])
def test_scripts_say_how_they_are_used(script: str) -> None:
    """Without arguments: the usage, and a failure."""
    ended = subprocess.run(["bash", str(RIG / script)], capture_output=True, text=True, check=False)

    assert ended.returncode == 2
    assert f"usage: tests/rig/{script}" in ended.stderr


def test_python_files_of_the_kit_are_of_the_hosts_python() -> None:
    """3.12 runs them there; 3.11's grammar is a part of it."""
    for path in (*RIG.glob("gpu/**/*.py"), RIG / "memprobe" / "memprobe.py"):
        ast.parse(path.read_text(), feature_version=(3, 11))


def listed(name: str) -> dict[str, str]:
    lines = (RIG / "gpu" / name).read_text().split()
    pairs = [line.split("==") for line in lines]
    assert all(len(pair) == 2 for pair in pairs), "one exact version a line"
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pairs}


def test_the_wheels_are_what_the_exporter_and_the_rig_need() -> None:
    """Two lists with nothing twice, and no dependency of the exporter forgotten."""
    engine, rig = listed("wheels.txt"), listed("wheels-rig.txt")
    assert not set(engine) & set(rig)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {
        re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!;~]", line, maxsplit=1)[0]).lower()
        for line in project["dependencies"]
    }
    # These the host has, as torch's and transformers' company.
    host = {"huggingface-hub", "prometheus-client", "protobuf"}
    assert needed - host <= set(engine) | set(rig)
    assert {"pytest", "pytest-timeout"} <= set(rig)


def test_only_what_a_hopper_gpu_runs_is_unpacked() -> None:
    """All Python, the libraries named, no front end in Rust, no headers of other chips."""
    assert wanted("vllm/v1/engine/core.py")
    assert wanted("vllm/_C_stable_libtorch.abi3.so")
    assert not wanted("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so")
    assert not wanted("vllm/vllm-rs")
    assert not wanted("vllm/third_party/deep_gemm/include/kernel.cuh")


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """(kind, architecture, code) of each entry, in the format of a CUDA fat binary."""
    body = b""
    for kind, arch, code in entries:
        header = struct.pack("<HHIQ", kind, 0, 48, len(code)).ljust(28, b"\0") + struct.pack("<I", arch)
        body += header.ljust(48, b"\0") + code
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(section: bytes) -> bytearray:
    """The smallest ELF file with one section, .nv_fatbin."""
    names = b"\0.nv_fatbin\0.shstrtab\0".ljust(24, b"\0")
    table_at = 64 + len(section) + len(names)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, table_at)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)

    def row(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 0, 0)

    rows = row(0, 0, 0) + row(1, 64, len(section)) + row(12, 64 + len(section), len(names))
    return bytearray(bytes(header) + section + names + rows)


def test_code_for_other_chips_is_blanked_in_place() -> None:
    """Kept code moves to the front, the rest is zeros, and no other byte of the file changes."""
    ours, theirs, ptx = b"H" * 32, b"A" * 16, b"P" * 24
    mixed = fat_binary((2, 80, theirs), (2, 90, ours), (1, 90, ptx))
    foreign = fat_binary((2, 80, theirs), (2, 86, theirs))
    before = library(mixed + foreign)
    after = bytearray(before)

    assert slim(after, 90) == 48 + 32
    assert len(after) == len(before)
    assert after[:64] == before[:64]
    assert (ours in after, ptx in after) == (True, False)
    # A module without code for this chip stays one that this chip can't launch.
    assert after.count(theirs) == 1
    assert after[64 + len(mixed + foreign) :] == before[64 + len(mixed + foreign) :]


def test_a_library_without_code_for_the_chip_is_refused() -> None:
    """Better here than on a host that has a few minutes."""
    with pytest.raises(ValueError, match="no code for sm_90"):
        slim(library(fat_binary((2, 80, b"A" * 16))), 90)
