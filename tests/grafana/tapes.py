"""What the recorded engines say over an afternoon: their pages minute by minute, their finished requests.

The recorded runs last half a minute.  Played at one page a minute they fill panels: twice on end, and again
after an hour of rest, so that there are a baseline and restarts.  No page is altered: gauges are the recorded
ones, and counters rise by the recorded amounts, only slower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from exporter.demo import load

RECORDINGS: Final = Path(__file__).parents[1] / "recordings"
VLLM_RUN: Final = RECORDINGS / "vllm-0.32.0-llama-preemptions"
SGLANG_RUN: Final = RECORDINGS / "sglang-0.5.23-llama-retractions"
FRAME_S: Final = 60
# When a run begins. A baseline looks back past the last hour and wants an hour with traffic.
RUNS_S: Final = (0, 40 * 60, 140 * 60)
# Half a minute before the end of the last one: both engines are at work.
END_S: Final = RUNS_S[-1] + 32 * FRAME_S

Page = Callable[[float], str | None]
"""Seconds after the start -> the page, or None where nobody answers."""


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def run_of(at: float) -> int:
    """Which run it is."""
    return sum(at >= begin for begin in RUNS_S) - 1


def runs(frames: Sequence[str], rest: str) -> Page:
    """``frames`` from each run's beginning, ``rest`` until the next one."""

    def page(at: float) -> str | None:
        number = int((at - RUNS_S[run_of(at)]) // FRAME_S)
        return frames[number] if number < len(frames) else rest

    return page


def three_pages(folder: Path) -> Page:
    """Idle for half an hour, loaded, drained for the last hour."""
    idle, loaded, after = (_read(folder / f"{name}.prom") for name in ("idle", "loaded", "after"))
    return lambda at: idle if at < 1800 else loaded if at < END_S - 3000 else after


def late(folder: Path) -> Page:
    """Idle, and loaded for the last five minutes."""
    idle, loaded = (_read(folder / f"{name}.prom") for name in ("idle", "loaded"))
    return lambda at: idle if at < END_S - 300 else loaded


def until(page: Page, end: float) -> Page:
    """``page``, and from ``end`` on nobody answers."""
    return lambda at: page(at) if at < end else None


def finished(page: str) -> int:
    """Requests that a page says had finished (vLLM's successes, SGLang's requests)."""
    found = re.findall(
        r"^(?:vllm:request_success_total|sglang:num_requests_total)\{.*\} (\S+)$", page, re.MULTILINE
    )
    return int(sum(map(float, found)))


def json_bodies(*files: tuple[str, Path]) -> dict[str, Any]:
    """Path of an info endpoint -> what it answered."""
    return {path: json.loads(_read(file)) for path, file in files}


@dataclass(frozen=True, slots=True)
class Pod:
    """One exporter and the engine beside it; ``labels`` are those of its scrape."""

    name: str
    labels: Mapping[str, str]
    page: Page
    config: Path | None = None
    endpoints: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    target: str = "127.0.0.1:8000"
    spans: tuple[Mapping[str, Any], ...] = ()
    log_lines: tuple[bytes, ...] = ()


def _scraped(number: int, name: str, **more: str) -> dict[str, str]:
    return {"job": "kv", "instance": f"10.0.0.{number}:9844", "pod": name, **more}


def pods(checkpoint: Path) -> list[Pod]:
    """All of them.  ``checkpoint``: a directory with the tiny Llama's config.json and weights."""
    vllm, sglang = load("vllm"), load("sglang")
    spans = [json.loads(line) for line in (VLLM_RUN / "otlp-request-spans.jsonl").read_text().splitlines()]
    lines = (SGLANG_RUN / "request-log.jsonl").read_bytes().splitlines()
    here, there = {"cluster": "east", "namespace": "llm"}, {"cluster": "west", "namespace": "lab"}
    return [
        Pod(
            "vllm-0",
            _scraped(1, "vllm-0", **here),
            runs([frame.page_text for frame in vllm.frames], _read(VLLM_RUN / "after.prom")),
            checkpoint,
            vllm.endpoints,
            {"route": "chat", "prefix_hit_objectives": {"chat": 0.5}},
            spans=tuple(sorted(spans, key=lambda span: span["end"])),
        ),
        Pod(
            "sglang-0",
            _scraped(2, "sglang-0", **here),
            runs([frame.page_text for frame in sglang.frames], _read(SGLANG_RUN / "after.prom")),
            checkpoint,
            sglang.endpoints,
            {"prefix_hit_objectives": {"shared": 0.5}},
            log_lines=tuple(lines),
        ),
        Pod(
            "vllm-1",
            _scraped(3, "vllm-1", **here),
            three_pages(RECORDINGS / "vllm-0.32.0-llama_fp8"),
            RECORDINGS / "vllm-0.32.0-llama_fp8/config.json",
        ),
        Pod(
            "vllm-2",
            _scraped(4, "vllm-2", **there),
            late(RECORDINGS / "vllm-0.32.0-gemma2"),
            RECORDINGS / "vllm-0.32.0-gemma2/config.json",
        ),
        Pod("vllm-3", _scraped(5, "vllm-3", **there), three_pages(RECORDINGS / "vllm-0.32.0-qwen3")),
        Pod(
            "vllm-4",
            _scraped(6, "vllm-4", **there),
            until(three_pages(RECORDINGS / "vllm-0.32.0-mistral_sw"), 130 * 60),
            RECORDINGS / "vllm-0.32.0-mistral_sw/config.json",
        ),
        # Both engines at work as they come: nobody reports finished requests, and SGLang has no config.json.
        Pod(
            "vllm-5",
            _scraped(7, "vllm-5", **there),
            runs([frame.page_text for frame in vllm.frames], _read(VLLM_RUN / "after.prom")),
            VLLM_RUN / "config.json",
        ),
        Pod(
            "sglang-1",
            _scraped(8, "sglang-1", **there),
            runs([frame.page_text for frame in sglang.frames], _read(SGLANG_RUN / "after.prom")),
        ),
        Pod(
            "plain",
            {"job": "kv", "instance": "10.0.1.9:9844"},
            lambda _: _read(RECORDINGS / "sglang-0.5.23-boot/llama-dp2/metrics.prom"),
            VLLM_RUN / "config.json",
            json_bodies(("/server_info", RECORDINGS / "sglang-0.5.23-boot/llama-dp2/server_info.json")),
            target="10.0.1.9:30000",
        ),
    ]
