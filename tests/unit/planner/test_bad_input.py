"""Bad configs and flags end in one line that names what is wrong, exit code 2, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main

SMALL = Path(__file__).parents[2] / "data" / "kv" / "configs" / "meta-llama__Llama-3.1-8B-Instruct.json"


def refused(capsys: pytest.CaptureFixture[str], path: Path, *flags: str) -> str:
    """The one line on stderr; nothing on stdout."""
    assert main(["plan", str(path), *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("kvcache-exporter plan: ")
    assert len(lines[0]) < 1500
    return lines[0]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": -32}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": 3.5}, "num_attention_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_key_value_heads": {"a": 1}}, "num_key_value_heads"),
        ({"hidden_size": "4096", "head_dim": None}, "hidden_size"),
        ({"head_dim": -128}, "head_dim"),
        ({"torch_dtype": 5}, "torch_dtype"),
        ({"torch_dtype": "float99"}, "torch_dtype"),
        ({"max_position_embeddings": "a"}, "max_position_embeddings"),
        ({"quantization_config": [1]}, "quantization_config"),
        ({"vocab_size": "128256"}, "vocab_size"),  # a weight's, not the cache's
        ({"intermediate_size": {}}, "intermediate_size"),
        ({"model_type": None}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"text_config": "nested"}, "text_config"),
    ],
)
def test_bad_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], field: str
) -> None:
    """The line names the file and the field."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(SMALL.read_text()), **change}))
    line = refused(capsys, file)
    assert str(file) in line
    assert field in line


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "not an object"),
        (b"null", "not an object"),
        (b"{}", "model_type"),
        (b'{"name": "left-pad", "version": "1.0.0"}', "model_type"),  # another file
        (b"[" * 100_000, "JSON"),
        (b'{"a":' * 100_000, "JSON"),
        (b'{"model_type": "llama", "num_hidden_layers": 1' + b"0" * 5000 + b"}", "JSON"),
        (b'{"model_type": "llama", "num_hidden_layers": NaN}', "num_hidden_layers"),
    ],
)
def test_files_that_are_no_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, word: str
) -> None:
    """Whatever is in the file."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    line = refused(capsys, file)
    assert str(file) in line
    assert word in line


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, a directory without a config, a binary, a device."""
    assert "no such file" in refused(capsys, tmp_path / "absent.json")
    assert "config.json" in refused(capsys, tmp_path)
    assert "regular file" in refused(capsys, Path("/dev/null"))


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ("--gpu H300", "H200"),
        ("--gpus 3 --tensor-parallel-size 2", "--gpus 3"),
        ("--gpus 3 --pipeline-parallel-size 2", "--gpus 3"),
        ("--gpus 4 --data-parallel-size 3", "--gpus 4"),
        ("--gpus 8 --decode-context-parallel-size 3", "--decode-context-parallel-size 3"),
        ("--weights-dtype fp9", "--weights-dtype"),
        ("--gpu-memory-utilization 1.5", "gpu_memory_utilization"),
        ("--gpu-memory-utilization 0", "gpu_memory_utilization"),
        ("--gpu-memory-gb -1", "gpu_memory_gb"),
        ("--gpu-memory-gb nan", "gpu_memory_gb"),
        ("--gpu-memory-gb inf", "gpu_memory_gb"),
        ("--weights-gb -1", "weights_gb"),
        ("--context 0", "context"),
        ("--context -5", "context"),
        ("--sequences 0", "sequences"),
        ("--price-per-hour -3", "price_per_hour"),
        ("--tensor-parallel-size 0", "tensor_parallel_size"),
        ("--kv-cache-dtype b/f", "kv_cache_dtype"),
        ("--kv-cache-dtype fp8e4m3", "fp8_e4m3"),
        ("--kv-cache-dtype fp9", "--kv-cache-dtype 'fp9'"),
        ("--speculative zzz", "--speculative 'zzz'"),
        ("--speculative eagl3", "eagle3"),
        ("--window-tokens 512", "window_tokens: needs bytes_per_token"),
        ("--weights-gb 16 --weights-dtype fp8", "--weights-dtype"),
    ],
)
def test_bad_flags(capsys: pytest.CaptureFixture[str], flags: str, word: str) -> None:
    """The line names the flag."""
    assert word in refused(capsys, SMALL, *flags.split())


@pytest.mark.parametrize("flags", [[], ["--no-such-flag"], ["--output", "yaml"], ["--engine", "tgi"]])
def test_usage(capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    """No CONFIG, an unknown flag, a value that is no choice: exit code 2, however the parser says it."""
    words = ["plan", *([str(SMALL)] if flags else []), *flags]
    try:
        code: object = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--tensor-parallel-size 3", "tensor_parallel_size"),
        ("--pipeline-parallel-size 64", "pipeline_parallel_size"),
    ],
)
def test_what_no_engine_would_do(capsys: pytest.CaptureFixture[str], flags: str, reason: str) -> None:
    """32 heads on 3 GPUs: the answer is that there is no answer, with the reason."""
    assert main(["plan", str(SMALL), *flags.split(), "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {entry["reason"] for entry in told["unavailable"]} >= {reason}
    assert "sequences" not in told
