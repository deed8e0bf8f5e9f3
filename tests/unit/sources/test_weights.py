"""Checkpoint size from index and headers; every file here is built by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.kvmath.known import Reason, Unavailable
from exporter.sources import weights_bytes


def safetensors(path: Path, *sizes: int, body: int | None = None, header: object = None) -> None:
    """A file of tensors of the given byte sizes; ``body`` cuts its data, ``header`` replaces its header."""
    tensors: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for i, size in enumerate(sizes):
        tensors[f"t{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(tensors if header is None else header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * (at if body is None else body))


def index(directory: Path, content: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))


def refused(directory: Path | None, word: str) -> None:
    result = weights_bytes(directory)
    assert isinstance(result, Unavailable), result
    assert result.reason is Reason.MODEL_WEIGHTS
    assert word in result.detail


def test_index_total(tmp_path: Path) -> None:
    """The index alone is enough: a hub cache may hold it without the shards."""
    index(tmp_path, {"metadata": {"total_size": 16_060_522_496}, "weight_map": {"a": "x.safetensors"}})
    assert weights_bytes(tmp_path) == 16_060_522_496


def test_index_total_as_float(tmp_path: Path) -> None:
    """Some converters wrote the sum as a float."""
    index(tmp_path, {"metadata": {"total_size": 1.6e10}})
    assert weights_bytes(tmp_path) == 16_000_000_000


def test_headers(tmp_path: Path) -> None:
    """Two shards, 100 + 28 and 72 bytes of tensors: 200, headers and metadata not counted."""
    safetensors(tmp_path / "model-00001-of-00002.safetensors", 100, 28)
    safetensors(tmp_path / "model-00002-of-00002.safetensors", 72)
    assert weights_bytes(tmp_path) == 200


def test_index_without_total_names_the_files(tmp_path: Path) -> None:
    """A stray file beside the indexed ones is not part of the checkpoint."""
    index(tmp_path, {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "c": "one.safetensors"}})
    safetensors(tmp_path / "one.safetensors", 10)
    safetensors(tmp_path / "two.safetensors", 5)
    safetensors(tmp_path / "stray.safetensors", 1000)
    assert weights_bytes(tmp_path) == 15


def test_consolidated_copy_counts_once(tmp_path: Path) -> None:
    """Mistral ships the weights twice, under two names."""
    safetensors(tmp_path / "model.safetensors", 40)
    safetensors(tmp_path / "consolidated.safetensors", 40)
    assert weights_bytes(tmp_path) == 40
    (tmp_path / "model.safetensors").unlink()
    assert weights_bytes(tmp_path) == 40


def test_shard_missing(tmp_path: Path) -> None:
    """Half a checkpoint must not pass for a small one."""
    safetensors(tmp_path / "model-00001-of-00003.safetensors", 10)
    safetensors(tmp_path / "model-00003-of-00003.safetensors", 10)
    refused(tmp_path, "2 of 3")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        (2**63).to_bytes(8, "little") + b"{}",
        (100_000_001).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{{",
        (3).to_bytes(8, "little") + b"{}",  # header longer than the file
    ],
)
def test_not_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(tmp_path, "model.safetensors")


@pytest.mark.parametrize(
    "tensor", [{}, 5, {"data_offsets": [5, 1]}, {"data_offsets": ["a", "b"]}, {"data_offsets": [-1, 3]}]
)
def test_bad_offsets(tmp_path: Path, tensor: object) -> None:
    safetensors(tmp_path / "model.safetensors", header={"t": tensor}, body=100)
    refused(tmp_path, "data_offsets")


def test_cut_off_download(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", 100, body=99)
    refused(tmp_path, "shorter than its header says")


@pytest.mark.parametrize(
    "content", [[], {"weight_map": {"a": "../up.safetensors"}}, {"weight_map": {"a": 1}}, {}]
)
def test_bad_index(tmp_path: Path, content: object) -> None:
    """A name that leads out of the directory is refused like any other rubbish."""
    safetensors(tmp_path / "model.safetensors", 10)
    index(tmp_path, content)
    refused(tmp_path, "model.safetensors.index.json")


def test_nothing_there(tmp_path: Path) -> None:
    refused(None, "not on this machine")
    refused(tmp_path, "no safetensors")
    refused(tmp_path / "gone", "no safetensors")
