"""Moments of a run, kept: the engine's page, what its log said and what the client knew.

The report's folder gets one file per model. Those in tests/rig/scenes are what the self-test plays: the
exporter reads the page again, with its arithmetic broken on purpose, and the checks have to notice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

# Buckets and process figures that no check is about; they are most of a page.
_LEFT_OUT = re.compile(
    r"# HELP |# EOF|(# TYPE )?(python_|process_|http_|prometheus_)|[^ {]*_created|"
    r"(vllm|sglang):(?!request_num_preemptions)[a-z_:]*_bucket"
)


def trimmed(page: str) -> str:
    """The lines of a page that the exporter's pool and counters need."""
    return "".join(f"{line}\n" for line in page.splitlines() if not _LEFT_OUT.match(line))


@dataclass(frozen=True, slots=True)
class Held:
    """The engine is held still with sequences of these computed lengths."""

    lengths: Sequence[int]
    page: str


@dataclass(frozen=True, slots=True)
class Overload:
    """So many requests at once, more than the pool holds; the pages before and after."""

    requests: int
    prompt_tokens: int
    before: str
    after: str


@dataclass(slots=True)
class Scene:
    """One engine with one model."""

    engine: str
    version: str
    model: str
    gpu: str | None = None
    """None: on the CPU, where pools and block sizes are others."""
    logged: dict[str, float] = field(default_factory=dict)
    """The figures of the engine's log and of its tensors."""
    idle: str = ""
    held: Held | None = None
    overload: Overload | None = None

    def write(self, directory: Path) -> None:
        """As DIRECTORY/ENGINE-MODEL-DEVICE.json."""
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1)
        (directory / f"{self.name}.json").write_text(text + "\n")

    @property
    def name(self) -> str:
        """Engine, model and device: what is kept of a GPU lies beside what is kept of the CPU."""
        return f"{self.engine}-{self.model}-{'gpu' if self.gpu else 'cpu'}"

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote; raises OSError, ValueError or TypeError where it can't be read."""
        told: dict[str, Any] = json.loads(path.read_text())
        for name, kind in (("held", Held), ("overload", Overload)):
            if told[name] is not None:
                told[name] = kind(**told[name])
        return cls(**told)
