"""A scene played to the exporter again: its arithmetic as it is in this process, broken or not."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

from exporter.cli import main

from . import load_figures, sglang_figures, vllm_figures
from .checks import Figure
from .engine import CapacityLine, MeasuredPool
from .models import CONFIGS
from .page import Page
from .scenes import Scene
from .sglang_truth import MODELS as SGLANG_MODELS
from .sglang_truth import SglangModel
from .truth import CPU_MODELS, GPU_MODELS, LLAMA_TP2, RigModel

Figures = Iterator[Figure]


def explained(page: str, directory: str, contexts: Sequence[int], flags: Sequence[str]) -> Page:
    """What the exporter makes of an engine's page; raises RuntimeError where it makes nothing of it."""
    with tempfile.TemporaryDirectory() as folder:
        metrics, config = Path(folder, "page.prom"), Path(folder, "config.json")
        metrics.write_text(page)
        config.write_text(json.dumps(CONFIGS[directory]))
        words = ["explain", "--metrics", str(metrics), "--model-config", str(config), "--output", "prom"]
        with redirect_stdout(io.StringIO()) as out:
            code = main([*words, "--context", *map(str, contexts), *flags])
    if code:
        raise RuntimeError(f"explain ended with {code}")
    return Page.parse(out.getvalue())


def _vllm(scene: Scene, model: RigModel) -> Figures:
    ranks = 2 if model is LLAMA_TP2 else 1
    flags = ["--tensor-parallel-size", "2"] if ranks > 1 else []

    def ours(page: str) -> Page:
        return explained(page, model.directory, tuple(model.fits), flags)

    told = dict(scene.logged)
    tensors = int(told.pop("tensor_bytes"))
    log = CapacityLine(
        int(told["kv_cache_tokens"]), int(told["max_model_len_tokens"]), told["max_concurrency"]
    )
    idle = ours(scene.idle)
    yield from vllm_figures.capacity(model, log, Page.parse(scene.idle), idle, ranks)
    yield from vllm_figures.memory(MeasuredPool(tensors * ranks, 1, None, None), idle)
    if scene.held is not None:
        yield from vllm_figures.held(model, scene.held.lengths, ours(scene.held.page))
    if scene.overload is not None:
        before, after = ours(scene.overload.before), ours(scene.overload.after)
        engine_before, engine = Page.parse(scene.overload.before), Page.parse(scene.overload.after)
        yield from vllm_figures.counters(engine, after)
        yield from vllm_figures.overload(
            engine_before, engine, before, after, scene.overload.requests, scene.overload.prompt_tokens
        )


def _sglang(scene: Scene, model: SglangModel) -> Figures:
    def ours(page: str) -> Page:
        return explained(page, model.directory, tuple(model.fits), [])

    logged = (int(scene.logged["tokens"]), int(scene.logged["context"]))
    yield from sglang_figures.capacity(model, logged, scene.logged["bytes"], ours(scene.idle))
    if scene.held is not None:
        free = Page.parse(scene.held.page).value("sglang:kv_available_tokens")
        yield from sglang_figures.held(model, scene.held.lengths, ours(scene.held.page), free_slots=free)
    if scene.overload is not None:
        before, after = ours(scene.overload.before), ours(scene.overload.after)
        yield from load_figures.finished(before, after, scene.overload.requests)
        yield from sglang_figures.counters(Page.parse(scene.overload.after), after)


def figures(scene: Scene) -> Figures:
    """Every comparison that the rig made of this scene, made again; raises KeyError for a model unknown."""
    if scene.engine == "vllm":
        models = GPU_MODELS if scene.gpu else (*CPU_MODELS, LLAMA_TP2)
        yield from _vllm(scene, {m.name: m for m in models}[scene.model])
    else:
        yield from _sglang(scene, {m.name: m for m in SGLANG_MODELS}[scene.model])
