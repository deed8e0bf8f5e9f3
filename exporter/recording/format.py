"""The file of a recorded run: what it holds, in memory and on disk.

Gzip'd JSON, one object a line, every line a gzip member of its own, so that a
file that ends early is whole up to its last line::

    {"format": "kvcache-exporter recording", "version": 1, "software": "vllm", ...}
    {"t": 0.0, "metrics": "# TYPE ..."}
    {"t": 2.0, "metrics": "..."}
    {"t": 4.0, "failure": "timeout"}

``t``: seconds after the first page.  ``failure``: the page could not be read, and why.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from exporter.facts import Facts
from exporter.settings import TargetSettings

FORMAT: Final = "kvcache-exporter recording"
VERSION: Final = 1
DEFAULT_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# What of the settings of a target changes figures and says nothing else about anybody.
SETTINGS: Final = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "kv_cache_dtype",
    "block_size",
    "max_model_len",
    "max_num_batched_tokens",
    "decode_context_parallel_size",
    "no_prefix_caching",
    "no_hybrid_manager",
    "speculative",
    "bytes_per_token",
    "state_bytes_per_sequence",
    "window_tokens",
    "gpu_bandwidth",
)
MAX_COUNT = 10**15

_Text = Annotated[str, Field(max_length=200, pattern=r"^[\x20-\x7e]*$")]
_Path = Annotated[str, Field(max_length=80, pattern=r"^/[\w/.-]+$")]


class RecordingError(ValueError):
    """A file that is no recording, or a damaged one; ``str()`` is one line for people."""


class Header(BaseModel):
    """The first line.  Fields that a later exporter adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["kvcache-exporter recording"] = FORMAT
    version: Literal[1] = VERSION
    exporter: _Text  # its release
    software: Literal["vllm", "sglang"]
    engine_version: _Text | None = None
    recorded_at: _Text  # ISO 8601, UTC, of the first page
    interval_seconds: float = Field(gt=0, le=86_400)
    content_type: _Text = DEFAULT_CONTENT_TYPE
    endpoints: dict[_Path, Any] = Field(default_factory=dict, max_length=32)  # path -> its JSON body
    config: dict[str, Any] | None = None  # the model's config.json
    config_source: _Text = "none"
    weights_bytes: int | None = Field(default=None, gt=0, le=10**15)
    command_line: Facts | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    names_redacted: bool = False

    @field_validator("command_line")
    @classmethod
    def _sizes(cls, said: Facts | None) -> Facts | None:
        for each in fields(said) if said is not None else ():
            value = getattr(said, each.name)
            if isinstance(value, str) and len(value) > 200:
                raise ValueError(f"{each.name} is too long")
            if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value < MAX_COUNT:
                raise ValueError(f"{each.name} is not a count")
        return said

    def target(self, url: str, name: str, **own: Any) -> TargetSettings:
        """Settings for this engine replayed at ``url``: ``own``, else what was set at the recording.

        Raises RecordingError where what was set makes no sense.
        """
        kept = {key: value for key, value in self.settings.items() if key in SETTINGS}
        try:
            return TargetSettings(url=url, name=name, **{**kept, **own})
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise RecordingError(f"its settings make no sense: {where}") from None


@dataclass(frozen=True, slots=True)
class Frame:
    """One page of ``/metrics``: when it was scraped, seconds after the first, and its text.

    The text is kept deflated: SGLang's is 250 kB and some 15 kB so.  ``failure`` is
    the reason where there was no page.
    """

    at_seconds: float
    deflated: bytes
    failure: str = ""

    @classmethod
    def of(cls, at_seconds: float, page_text: str) -> Frame:
        return cls(at_seconds, zlib.compress(page_text.encode(), 1))

    @property
    def page_text(self) -> str:
        """The page, inflated anew at each call; "" where there was none."""
        return "" if self.failure else zlib.decompress(self.deflated).decode()


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded run of one engine.

    ``frames`` rise strictly in ``at_seconds``; the first is a page, at 0.  ``cut``:
    the file ended within a line, which is left out.
    """

    header: Header
    frames: tuple[Frame, ...] = field(repr=False)
    cut: bool = False

    def __post_init__(self) -> None:
        times = [frame.at_seconds for frame in self.frames]
        if not times or times[0] != 0 or self.frames[0].failure:
            raise RecordingError("needs a first page, at 0 s")
        if any(later <= earlier for earlier, later in pairwise(times)):
            raise RecordingError("pages out of order")

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """Path -> JSON body."""
        return self.header.endpoints

    @property
    def content_type(self) -> str:
        """Of ``/metrics``."""
        return self.header.content_type

    @property
    def loop_seconds(self) -> float:
        """Seconds for one round: the last frame is shown for as long as a frame is on average."""
        last = self.frames[-1].at_seconds
        return last + last / (len(self.frames) - 1) if len(self.frames) > 1 else 1.0

    def frame_at(self, elapsed_seconds: float) -> Frame:
        """The frame on show ``elapsed_seconds`` after the start, round and round."""
        return self.frames[self.index_at(elapsed_seconds % self.loop_seconds)]

    def index_at(self, at_seconds: float) -> int:
        """Which frame was the newest ``at_seconds`` after the first."""
        return max(0, bisect_right(self.frames, at_seconds, key=lambda frame: frame.at_seconds) - 1)
