"""What would help where the sequences asked for don't fit, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from exporter.kvmath.dtypes import element_bytes
from exporter.kvmath.hardware import GPUS
from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.plan import ContextPlan, longest_context, shortest_prefix
from exporter.planner.answer import Answer, fit_with
from exporter.planner.question import Machine

MAX_GPUS = 64


class Kind(StrEnum):
    """Remedies, in the order people try them."""

    FP8_CACHE = "fp8_cache"
    FP8_WEIGHTS = "fp8_weights"
    SHARED_PREFIX = "shared_prefix"
    CONTEXT_CAP = "context_cap"
    MORE_GPUS = "more_gpus"
    OTHER_GPU = "other_gpu"
    FEWER_KV_HEADS = "fewer_kv_heads"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change and how many sequences of ``tokens`` tokens one replica then holds."""

    tokens: int
    kind: Kind
    change: str
    fit: int
    fits: bool


def remedies(answer: Answer) -> tuple[Remedy, ...]:
    """For every context at which the sequences wanted don't fit."""
    shape, layout = answer.shape, answer.layout
    if not known(shape) or not known(layout):
        return ()
    return tuple(
        remedy
        for context in answer.contexts
        if answer.fits_at(context) is False
        for remedy in _for_context(answer, shape, context)
    )


def _for_context(answer: Answer, shape: ModelShape, context: ContextPlan) -> Iterator[Remedy]:
    def remedy(kind: Kind, change: str, fit: int | Unavailable) -> Iterator[Remedy]:
        if known(fit):
            yield Remedy(context.tokens, kind, change, fit, fit >= answer.wanted)

    asked, weights = answer.question, answer.weights
    if (eight := _fp8(answer)) is not None:
        choices = replace(asked.choices, kv_cache_dtype=eight)
        fit = fit_with(asked, shape, weights, context.tokens, choices)
        yield from remedy(Kind.FP8_CACHE, f"--kv-cache-dtype {eight}", fit)
    if known(weights) and known(weights.parameters) and weights.parameters < weights.bytes:
        lighter = replace(weights, bytes=weights.parameters)
        fit = fit_with(asked, shape, lighter, context.tokens)
        yield from remedy(Kind.FP8_WEIGHTS, "--weights-dtype fp8", fit)
    yield from _shorter(answer, context)
    if (more := _more_gpus(answer, shape, context.tokens)) is not None:
        machine, fit = more
        yield from remedy(Kind.MORE_GPUS, f"{machine.gpus} x {machine.name}", fit)
    if (other := _other_gpu(answer, shape, context.tokens)) is not None:
        machine, fit = other
        yield from remedy(Kind.OTHER_GPU, f"{machine.gpus} x {machine.name}", fit)
    if (fewer := _half_the_heads(shape)) is not None:
        heads, smaller = fewer
        fit = fit_with(asked, smaller, weights, context.tokens)
        yield from remedy(Kind.FEWER_KV_HEADS, f"a model alike with {heads} KV heads", fit)


def _fp8(answer: Answer) -> str | None:
    """The fp8 spelling of the cache, None where it takes no more than a byte already."""
    layout = answer.layout
    size = element_bytes(layout.cache_dtype) if known(layout) else layout
    return "fp8" if known(size) and size > 1 else None


def _shorter(answer: Answer, context: ContextPlan) -> Iterator[Remedy]:
    """Sharing a longer prefix, and serving a shorter context: how far it must go."""
    layout, pool, asked = answer.layout, answer.pool, answer.question
    if not known(layout) or not known(pool):
        return
    if asked.choices.prefix_caching and answer.wanted > 1:
        prefix = shortest_prefix(layout, pool.usable_blocks, answer.wanted, context.tokens)
        if prefix:
            change = f"{prefix:,} of {context.tokens:,} tokens shared by all"
            yield Remedy(context.tokens, Kind.SHARED_PREFIX, change, answer.wanted, True)
    shared = context.sharing.prefix_tokens
    cap = longest_context(layout, pool.usable_blocks, answer.wanted, shared, context.tokens)
    if cap > shared:
        yield Remedy(context.tokens, Kind.CONTEXT_CAP, f"at most {cap:,} tokens", answer.wanted, True)


def _more_gpus(answer: Answer, shape: ModelShape, tokens: int) -> tuple[Machine, int] | None:
    """The smallest tensor-parallel size at which it fits, else the largest there is."""
    machine, found = answer.question.machine, None
    tensor = machine.parallelism.tensor
    while (tensor := tensor * 2) * machine.parallelism.pipeline <= MAX_GPUS:
        split = Parallelism(tensor, machine.parallelism.pipeline, machine.parallelism.decode_context)
        wider = replace(machine, parallelism=split)
        choices = replace(answer.question.choices, parallelism=split)
        fit = fit_with(answer.question, shape, answer.weights, tokens, choices, wider)
        if not known(fit):
            break
        found = (wider, fit)
        if fit >= answer.wanted:
            break
    return found


def _other_gpu(answer: Answer, shape: ModelShape, tokens: int) -> tuple[Machine, int] | None:
    """As many of the smallest larger GPU at which it fits, else of the largest."""
    machine, found = answer.question.machine, None
    for gpu in sorted(GPUS, key=lambda g: (g.memory_bytes, -g.bandwidth_bytes_per_second)):
        if gpu.memory_bytes <= machine.memory_bytes:
            continue
        other = Machine(
            gpu.name,
            gpu.memory_bytes,
            gpu.bandwidth_bytes_per_second,
            machine.parallelism,
            machine.replicas,
        )
        fit = fit_with(answer.question, shape, answer.weights, tokens, machine=other)
        if not known(fit):
            return None
        if found is None or fit > found[1]:
            found = (other, fit)
        if fit >= answer.wanted:
            break
    return found


def _half_the_heads(shape: ModelShape) -> tuple[int, ModelShape] | None:
    """The same model with half the K and V heads, for people who can still choose one."""
    heads = max((layer.kv_heads for layer in shape.layers), default=0)
    if heads < 2 or any(layer.kv_heads % 2 and layer.kv_heads > 1 for layer in shape.layers):
        return None
    layers = tuple(replace(layer, kv_heads=max(1, layer.kv_heads // 2)) for layer in shape.layers)
    return heads // 2, replace(shape, layers=layers)
