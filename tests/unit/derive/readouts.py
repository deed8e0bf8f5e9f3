"""Samples, models and readouts in few words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from exporter.catalogue import Metric
from exporter.derive.derive import derive
from exporter.derive.inputs import Model
from exporter.derive.readout import Readout
from exporter.engines.sample import EngineSample
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason, known
from exporter.kvmath.model import read_model

TESTS = Path(__file__).parents[2]
# 4 layers, 2 KV heads of 32, bfloat16: 1,024 bytes a token, 32,768 a block of 32.
LLAMA = "recordings/vllm-0.32.0-llama-preemptions/config.json"
# 3 layers keep all and 3 keep 256 tokens: two cache groups, 24,576 bytes a block of 32.
GEMMA2 = "recordings/vllm-0.32.0-gemma2/config.json"
# 18 layers keep all and 18 keep 128 tokens, 8 KV heads of 64: 18 x 2 x 8 x 64 x 2 = 36,864 bytes each.
GPT_OSS = "data/kv/configs/openai__gpt-oss-120b.json"


def model(path: str) -> Model:
    shape = read_model(json.loads((TESTS / path).read_text()))
    assert known(shape), shape
    return Model(shape, "path", path)


def vllm(**more: Any) -> EngineSample:
    """The recorded Llama run: 300 blocks of 32 tokens, half in use."""
    said: dict[str, Any] = {
        "software": "vllm",
        "model_name": "m",
        "engine": "0",
        "usage_ratio": 149 / 299,
        "num_blocks": 300,
        "null_blocks": 1,
        "block_tokens": 32,
        "capacity_tokens": 9_600,
        "max_concurrency": 2.34375,
        "max_model_len": 4_096,
        "cache_dtype": "auto",
        "running_sequences": 4,
        "waiting_sequences": 0,
    }
    return EngineSample(**{**said, **more})


def sglang(**more: Any) -> EngineSample:
    """A pool of 10,000 tokens, 4,000 in use, pages of one token."""
    said: dict[str, Any] = {
        "software": "sglang",
        "model_name": "m",
        "usage_ratio": 0.4,
        "block_tokens": 1,
        "capacity_tokens": 10_000,
        "used_tokens": 4_000,
        "cached_tokens": 1_000,
        "max_model_len": 8_192,
        "running_sequences": 4,
        "waiting_sequences": 0,
    }
    return EngineSample(**{**said, **more})


def read(
    sample: EngineSample,
    config: str | None = LLAMA,
    contexts: Sequence[int] = (4_096,),
    facts: Mapping[Source, Facts] | None = None,
    **more: Any,
) -> Readout:
    return derive(sample, facts or {}, model(config) if config else Model(), contexts, **more)


def figure(readout: Readout, metric: Metric, **labels: str) -> float | Reason | None:
    """The figure; the reason why it is missing; ``None`` where neither is there (a bug)."""
    found = [
        f.value
        for f in readout.figures
        if f.metric is metric and all(f.labels.get(k) == v for k, v in labels.items())
    ]
    assert len(found) <= 1, found
    if found:
        return found[0]
    why = readout.missing.get(metric)
    return why.reason if why else None


def by(readout: Readout, metric: Metric, label: str) -> dict[str, float]:
    return {f.labels[label]: f.value for f in readout.figures if f.metric is metric}


def told(**said: Any) -> Mapping[Source, Facts]:
    """Settings."""
    return {Source.SETTING: Facts(**said)}
