"""Recorded engine runs as package data: pages over time and info endpoints."""

from __future__ import annotations

import gzip
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

_DATA: Final = Path(__file__).parent / "data"

# What each engine answered where. File names can't tell "/v1/models" from "/v1_models", so it is spelt out.
_ENDPOINTS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "/v1/models": "v1_models.json",
        "/version": "version.json",
        "/server_info": "server_info.json",
    },
    "sglang": {
        "/model_info": "model_info.json",
        "/server_info": "server_info.json",
        "/v1/models": "v1_models.json",
        "/v1/loads": "v1_loads.json",
    },
}

# vLLM 0.32.0 answers with client_python's newest plain-text version whatever is asked for; SGLang 0.5.23
# negotiates, and this is its answer to the header the exporter sends.
_CONTENT_TYPES: Final[Mapping[str, str]] = {
    "vllm": "text/plain; version=1.0.0; charset=utf-8",
    "sglang": "text/plain; version=0.0.4; charset=utf-8",
}

NAMES: Final = tuple(_ENDPOINTS)


@dataclass(frozen=True, slots=True)
class Frame:
    """One page of ``/metrics``: when it was scraped, seconds after the first, and its text.

    The text is kept deflated: the SGLang run is 8 MB as text and under 1 MB so.
    """

    at_seconds: float
    deflated: bytes

    @classmethod
    def of(cls, at_seconds: float, page_text: str) -> Frame:
        return cls(at_seconds, zlib.compress(page_text.encode()))

    @property
    def page_text(self) -> str:
        """The page, inflated anew at each call."""
        return zlib.decompress(self.deflated).decode()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run of one engine.

    ``frames`` rise strictly in ``at_seconds`` and start at 0; ``endpoints`` maps
    a path to its JSON body; ``config_path`` is the model's ``config.json``.
    """

    name: str
    frames: tuple[Frame, ...]
    endpoints: Mapping[str, Any]
    content_type: str
    config_path: Path

    def __post_init__(self) -> None:
        times = [frame.at_seconds for frame in self.frames]
        if not times or times[0] != 0:
            raise ValueError(f"recording {self.name}: needs a first frame at 0 s")
        if any(later <= earlier for earlier, later in pairwise(times)):
            raise ValueError(f"recording {self.name}: frames out of order")

    @property
    def loop_seconds(self) -> float:
        """Seconds for one round: the last frame is shown for as long as a frame is on average."""
        last = self.frames[-1].at_seconds
        return last + last / (len(self.frames) - 1) if len(self.frames) > 1 else 1.0

    def frame_at(self, elapsed_seconds: float) -> Frame:
        """The frame on show ``elapsed_seconds`` after the start, round and round."""
        within = elapsed_seconds % self.loop_seconds
        return self.frames[bisect_right(self.frames, within, key=lambda frame: frame.at_seconds) - 1]


def _frames(path: Path) -> Iterator[Frame]:
    """Frames of a ``.jsonl.gz``, line by line: one page at a time is in memory as text."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Frame.of(float(row["t"]), row["metrics"])


def load(name: str) -> Recording:
    """The recording called ``name`` ("vllm" or "sglang"); ``KeyError`` for any other name."""
    folder = _DATA / name
    endpoints = {path: json.loads((folder / file).read_bytes()) for path, file in _ENDPOINTS[name].items()}
    return Recording(
        name=name,
        frames=tuple(_frames(_DATA / f"{name}.jsonl.gz")),
        endpoints=endpoints,
        content_type=_CONTENT_TYPES[name],
        config_path=folder / "config.json",
    )
