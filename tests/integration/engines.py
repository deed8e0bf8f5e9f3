"""A recorded vLLM 0.32.0 to be healthy with, and small changes to its page."""

from __future__ import annotations

import re
from pathlib import Path

from .hostile import Answer, as_json, body, engine

RECORDINGS = Path(__file__).parents[1] / "recordings"
LLAMA = RECORDINGS / "vllm-0.32.0-llama-preemptions"
QWEN3 = RECORDINGS / "vllm-0.32.0-qwen3"

# K and V x 2 KV heads x 32 x 4 layers x 2 bytes (bf16), from LLAMA's config.json.
LLAMA_BYTES_PER_TOKEN = 1024.0


def page(name: str = "loaded.prom", folder: Path = LLAMA) -> str:
    return (folder / name).read_text()


def renamed(text: str, model_name: str) -> str:
    """The page with another ``model_name``."""
    return re.sub(r'model_name="[^"]*"', f'model_name="{model_name}"', text)


def with_value(text: str, name: str, value: str) -> str:
    """The page with another value on the one line of the sample ``name``; ValueError if not one."""
    changed, lines = re.subn(rf"^({re.escape(name)}(?:{{.*}})?) \S+$", rf"\g<1> {value}", text, flags=re.M)
    if lines != 1:
        raise ValueError(f"{lines} lines of {name}")
    return changed


def models(root: object, **more: object) -> Answer:
    """``/v1/models`` as vLLM answers it."""
    entry = {"id": "llama", "owned_by": "vllm", "root": root, "parent": None, "max_model_len": 4096, **more}
    return as_json({"object": "list", "data": [entry]})


def vllm(
    text: str | bytes | None = None, folder: Path = LLAMA, metrics: Answer | None = None, **info: Answer
) -> Answer:
    """A vLLM with this page; its model lies in ``folder``, unless ``info`` says otherwise."""
    said = {"v1_models": models(str(folder)), "version": as_json({"version": "0.32.0"}), **info}
    return engine(metrics or body(text if text is not None else page(folder=folder)), **said)
