"""Short ways to a page and its samples."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.engines import detect
from exporter.engines.exposition import Page
from exporter.engines.sample import EngineSample


def line(name: str, value: float | str, **labels: str) -> str:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def page(*lines: str) -> Page:
    return detect.read("\n".join(lines) + "\n")


def samples(*lines: str, version: str | None = None) -> tuple[EngineSample, ...]:
    return detect.samples(page(*lines), version)


def sample(*lines: str, version: str | None = None) -> EngineSample:
    found = samples(*lines, version=version)
    assert len(found) == 1, found
    return found[0]


def config_info(prefix: str = "vllm:", labels: Mapping[str, str] | None = None, **more: str) -> str:
    """vLLM's cache_config_info, with the labels that every release has."""
    merged = {"block_size": "16", "cache_dtype": "auto", "num_gpu_blocks": "101", **(labels or {}), **more}
    return line(f"{prefix}cache_config_info", 1, **merged)


def histogram(buckets: Mapping[str, float], total: float, count: float, **labels: str) -> list[str]:
    """vLLM's request_num_preemptions."""
    name = "vllm:request_num_preemptions"
    return [
        *(line(f"{name}_bucket", many, le=le, **labels) for le, many in buckets.items()),
        line(f"{name}_sum", total, **labels),
        line(f"{name}_count", count, **labels),
    ]
