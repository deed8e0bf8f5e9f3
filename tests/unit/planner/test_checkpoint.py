"""What the checkpoint's own files say about its weights; every file here is built by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Plan = Callable[..., dict[str, Any]]
CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
SMALL = json.loads((CONFIGS / "meta-llama__Llama-3.1-8B-Instruct.json").read_text())


def checkpoint(directory: Path, tensors: dict[str, int], **config: object) -> Path:
    """A Llama whose one file holds ``tensors``: dtype -> bytes.  The data is a hole in the file."""
    header, at = {}, 0
    for dtype, size in tensors.items():
        header[dtype] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    (directory / "config.json").write_text(json.dumps({**SMALL, **config}))
    return directory


def test_headers(plan: Plan, tmp_path: Path) -> None:
    """As stored, and two bytes to a parameter."""
    told = plan(checkpoint(tmp_path, {"BF16": 10**6, "F16": 2 * 10**6}))
    assert told["weights_bytes"] == 3 * 10**6
    assert told["weights"]["source"] == "headers"
    assert told["weights"]["estimated"] is False
    assert told["weights"]["parameters"] == 1_500_000


def test_float32_is_loaded_in_16_bits(plan: Plan, tmp_path: Path) -> None:
    """4 MB of float32 become 2 MB; the few bytes in 16 bits stay."""
    told = plan(checkpoint(tmp_path, {"F32": 4 * 10**6, "BF16": 1000}))
    assert told["weights_bytes"] == 2 * 10**6 + 1000


def test_a_few_float32_tensors_stay(plan: Plan, tmp_path: Path) -> None:
    """Routers' biases and the like are kept in float32 by 16-bit checkpoints."""
    assert plan(checkpoint(tmp_path, {"F32": 1000, "BF16": 10**6}))["weights_bytes"] == 1_001_000


def test_quantized_files_are_taken_as_they_are(plan: Plan, tmp_path: Path) -> None:
    """Packed tensors hold several parameters an element: bytes are known, parameters come from the config."""
    told = plan(
        checkpoint(
            tmp_path, {"F32": 3000, "I32": 1000}, quantization_config={"quant_method": "awq", "bits": 4}
        )
    )
    assert told["weights_bytes"] == 4000
    assert told["weights"]["parameters"] == 8_029_995_008


@pytest.mark.parametrize(("dtype", "expected"), [("fp8", 10**6), ("bfloat16", 2 * 10**6), ("int4", 500_000)])
def test_another_dtype(plan: Plan, tmp_path: Path, dtype: str, expected: int) -> None:
    """--weights-dtype counts a million parameters anew."""
    told = plan(checkpoint(tmp_path, {"BF16": 2 * 10**6}), f"--weights-dtype {dtype}")
    assert told["weights_bytes"] == expected
    assert told["weights"]["estimated"] is True


def test_modelopt_keeps_its_scheme_in_a_file_of_its_own(plan: Plan, tmp_path: Path) -> None:
    """hf_quant_config.json: fp8 weights and cache.  1 byte a matrix parameter, embedding and output at 2."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}})
    )
    told = plan(tmp_path)
    embedding = 128256 * 4096
    assert told["weights_bytes"] == 8_029_995_008 + 2 * embedding
    assert told["bytes_per_token"] == 65_536


def test_a_config_among_other_files(plan: Plan, tmp_path: Path) -> None:
    """A file of another name says nothing about the tensors beside it."""
    checkpoint(tmp_path, {"BF16": 10**6})
    other = tmp_path / "other.json"
    other.write_text(json.dumps(SMALL))
    assert plan(other)["weights"]["source"] == "estimate"


def test_a_shard_is_missing(plan: Plan, tmp_path: Path) -> None:
    """An incomplete download is no size: the estimate steps in, and says that it is one."""
    checkpoint(tmp_path, {"BF16": 10**6})
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    told = plan(tmp_path)
    assert told["weights"]["source"] == "estimate"
    assert told["weights"]["estimated"] is True


def test_told_weights_win(plan: Plan, tmp_path: Path) -> None:
    """--weights-gb is the last word, in GB of 10^9."""
    told = plan(checkpoint(tmp_path, {"BF16": 10**6}), "--weights-gb 12.5")
    assert told["weights_bytes"] == 12_500_000_000
    assert told["weights"]["source"] == "setting"
