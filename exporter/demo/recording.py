"""The recordings that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from exporter.recording.format import Recording
from exporter.recording.reader import read

_DATA: Final = Path(__file__).parent / "data"

NAMES: Final = ("vllm", "sglang")


def load(name: str) -> Recording:
    """The recording called ``name`` ("vllm" or "sglang"); ``KeyError`` for any other name."""
    if name not in NAMES:
        raise KeyError(name)
    return read(_DATA / f"{name}.jsonl.gz")
