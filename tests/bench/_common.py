"""What the benchmarks share: timing in turns, recorded engines, and how figures are told."""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from exporter.engines.info import parse_document, read_documents
from exporter.log import configure
from exporter.lookup import load_model
from exporter.settings import DEFAULT_CONTEXTS, TargetSettings
from exporter.target import TargetState

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


@dataclass(frozen=True, slots=True)
class Engine:
    """One recorded engine under load: its page, its info endpoints, its model."""

    name: str
    folder: Path
    endpoint_files: Mapping[str, str]
    # SGLang's folder has no config.json; it served the very model of vLLM's.
    config_path: Path

    @property
    def page(self) -> str:
        return (self.folder / "loaded.prom").read_text(encoding="utf-8")

    @property
    def documents(self) -> dict[str, object]:
        """What each info endpoint answers, by path."""
        return {
            path: parse_document((self.folder / file).read_text(encoding="utf-8"))
            for path, file in self.endpoint_files.items()
        }

    def settings(self, url: str, name: str = "") -> TargetSettings:
        return TargetSettings(url=url, name=name, model_config_path=self.config_path)

    def state(self, name: str) -> TargetState:
        """A target that has read this engine's page once and knows all there is to know."""
        state = TargetState(self.settings("http://127.0.0.1:1", name), DEFAULT_CONTEXTS, 2.0)
        reading = state.read(self.page)
        state.learn(read_documents(self.documents.values(), reading.page.software), None)
        state.model = load_model(self.config_path, None, allow_hub=False)
        state.accept(reading, time.monotonic())
        return state


_VLLM = RECORDINGS / "vllm-0.32.0-llama-preemptions"
ENGINES = {
    "vllm": Engine(
        "vllm",
        _VLLM,
        {
            "/v1/models": "endpoints/v1_models.txt",
            "/version": "endpoints/version.txt",
            "/server_info": "endpoints/server_info.json",
        },
        _VLLM / "config.json",
    ),
    "sglang": Engine(
        "sglang",
        RECORDINGS / "sglang-0.5.23-llama-retractions",
        {
            "/server_info": "server_info_after.json",
            "/model_info": "model_info.json",
            "/v1/models": "v1_models.json",
        },
        _VLLM / "config.json",
    ),
}


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of one thing done several times.  The best is the figure to
    compare by: whatever else the machine does can only add to it."""

    best_ms: float
    median_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        return cls(min(seconds) * 1e3, median(seconds) * 1e3)


def in_turns(rounds: int, things: Mapping[str, Callable[[], object]]) -> dict[str, Times]:
    """CPU time of each thing, done once per round, one after the other, so that all of
    them meet the same machine; a first round warms up and does not count.

    Not wall time: on a busy machine a long thing is interrupted more surely than a
    short one, which would flatter whatever is short.
    """
    taken: dict[str, list[float]] = {name: [] for name in things}
    for n in range(rounds + 1):
        for name, thing in things.items():
            started = time.thread_time()
            thing()
            if n:
                taken[name].append(time.thread_time() - started)
    return {name: Times.of(seconds) for name, seconds in taken.items()}


def quick(description: str | None) -> bool:
    """Whether the command line asks for a short run; also makes the exporter's log quiet."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rounds: to see that it works")
    configure("error", "console")
    return bool(parser.parse_args().quick)


def show(rows: Sequence[Sequence[object]]) -> None:
    """A table whose first row is its head: words to the left, figures to the right."""
    cells = [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (c.rjust(w) if n else c.ljust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True)))
        print("  ".join(padded))


def tell(name: str, figures: Mapping[str, object]) -> None:
    """The last line of a benchmark: everything it measured, as JSON, to keep."""
    line = {"name": name, "cpu": _cpu(), "python": platform.python_version(), "figures": _rounded(figures)}
    print(json.dumps(line))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor())


def _rounded(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value
