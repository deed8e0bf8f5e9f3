"""What would help where the sequences asked for don't fit, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from exporter.kvmath.hardware import GPUS
from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.model import ModelShape
from exporter.kvmath.plan import ContextPlan, longest_context, shortest_prefix
from exporter.planner.answer import Answer, fit_with
from exporter.planner.layouts import EngineLayout, engine_layout
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
    """One change and how many sequences of ``tokens`` tokens all replicas together then hold."""

    tokens: int
    kind: Kind
    change: str
    fit: int
    fits: bool


def remedies(answer: Answer) -> tuple[Remedy, ...]:
    """For every context the model serves at which the sequences wanted don't fit.

    A change after which no more of them fit than before is left out.
    """
    # Without the model's shape (a cache set by hand) there is nothing to vary.
    if not known(answer.shape) or not known(answer.layout) or answer.question.choices.override.names:
        return ()
    short = [context for context in answer.decisive if answer.fits_at(context) is False]
    if not short:
        return ()
    others = _Others(answer, answer.shape, answer.layout)
    return tuple(remedy for context in short for remedy in others.for_context(context))


class _Others:
    """The same question asked of other layouts; each is worked out once for all contexts."""

    def __init__(self, answer: Answer, shape: ModelShape, layout: EngineLayout) -> None:
        self._answer = answer
        self._asked = answer.question
        self._layout = layout
        self._choices = answer.question.choices
        self._shape = shape
        self._eight = self._fp8()
        self._wider: dict[int, EngineLayout | Unavailable] = {}
        self._halved = self._half_the_heads()
        # Nobody said how many: one for each replica.
        self._wanted = self._asked.all_sequences or self._asked.machine.replicas

    def for_context(self, context: ContextPlan) -> Iterator[Remedy]:
        """What helps at one context, in the order people try it."""
        tokens, weights = context.tokens, self._answer.weights
        replicas, now = self._asked.machine.replicas, context.fit_sharing

        def remedy(kind: Kind, change: str, fit: int | Unavailable) -> Iterator[Remedy]:
            if known(fit) and known(now) and fit > now:
                yield Remedy(tokens, kind, change, fit * replicas, fit >= self._answer.wanted)

        if self._eight is not None:
            fit = fit_with(self._asked, self._eight, weights, tokens)
            yield from remedy(Kind.FP8_CACHE, "--kv-cache-dtype fp8", fit)
        # What is quantized already is in 8 bits or fewer; only embedding, output and scales take more.
        if known(weights) and known(weights.parameters) and not weights.quantized:
            lighter = replace(weights, bytes=min(weights.bytes, weights.parameters))
            fit = fit_with(self._asked, self._layout, lighter, tokens)
            yield from remedy(Kind.FP8_WEIGHTS, "--weights-dtype fp8", fit)
        yield from self._shorter(context)
        if known(now) and (found := self._more_gpus(tokens)) is not None:
            machine, fit = found
            if fit > now * replicas:
                yield Remedy(tokens, Kind.MORE_GPUS, _spread(machine), fit, fit >= self._wanted)
        if (found := self._other_gpu(tokens)) is not None:
            machine, fit = found
            yield from remedy(Kind.OTHER_GPU, f"{machine.gpus} x {machine.name}", fit)
        if self._halved is not None:
            heads, layout = self._halved
            fit = fit_with(self._asked, layout, weights, tokens)
            yield from remedy(Kind.FEWER_KV_HEADS, f"a model alike with {heads} KV heads", fit)

    def _fp8(self) -> EngineLayout | None:
        """The layout with an fp8 cache, None where that takes no less."""
        found = engine_layout(self._shape, replace(self._choices, kv_cache_dtype="fp8"))
        if not known(found):
            return None
        now, then = self._layout.bytes_per_token, found.bytes_per_token
        return found if then < now or (now == 0 and found.block_bytes < self._layout.block_bytes) else None

    def _shorter(self, context: ContextPlan) -> Iterator[Remedy]:
        """Sharing a longer prefix, and serving a shorter context: how far it must go."""
        pool, wanted, tokens = self._answer.pool, self._answer.wanted, context.tokens
        if not known(pool):
            return
        if self._choices.prefix_caching and wanted > 1:
            prefix = shortest_prefix(self._layout, pool.usable_blocks, wanted, tokens)
            if prefix:
                change = f"{prefix:,} of {tokens:,} tokens shared by all"
                yield Remedy(tokens, Kind.SHARED_PREFIX, change, wanted * self._asked.machine.replicas, True)
        shared = context.sharing.prefix_tokens
        cap = longest_context(self._layout, pool.usable_blocks, wanted, shared, tokens)
        if cap > shared:
            change, fit = f"at most {cap:,} tokens", wanted * self._asked.machine.replicas
            yield Remedy(tokens, Kind.CONTEXT_CAP, change, fit, True)

    def _more_gpus(self, tokens: int) -> tuple[Machine, int] | None:
        """The fewest GPUs on which all sequences fit, and how many do; else what holds the most.

        A model is spread wider, which leaves more of a GPU beside the weights; or
        copied, which keeps K and V from being copied within a replica (latents are on
        every rank).
        """
        machine, split = self._asked.machine, self._asked.machine.parallelism
        found: list[tuple[Machine, int]] = []
        tensor = split.tensor
        while (most := MAX_GPUS // (tensor * split.pipeline)) > 0:
            wider = replace(machine, parallelism=replace(split, tensor=tensor))
            if tensor not in self._wider:
                choices = replace(self._choices, parallelism=wider.parallelism)
                self._wider[tensor] = engine_layout(self._shape, choices)
            fit = fit_with(self._asked, self._wider[tensor], self._answer.weights, tokens, wider)
            if not known(fit):
                break
            tensor *= 2
            if fit:
                replicas = max(machine.replicas, min(most, -(-self._wanted // fit)))
                wider = replace(wider, replicas=replicas)
                if machine.gpus < wider.gpus <= MAX_GPUS:
                    found.append((wider, fit * replicas))

        def order(one: tuple[Machine, int]) -> tuple[int, int, int]:
            wider, fit = one
            return (0, wider.gpus, -fit) if fit >= self._wanted else (1, -fit, wider.gpus)

        return min(found, key=order, default=None)

    def _other_gpu(self, tokens: int) -> tuple[Machine, int] | None:
        """As many of the smallest larger GPU at which it fits, else of the largest."""
        machine, found = self._asked.machine, None
        for gpu in sorted(GPUS, key=lambda g: (g.memory_bytes, -g.bandwidth_bytes_per_second)):
            if gpu.memory_bytes <= machine.memory_bytes:
                continue
            other = replace(
                machine,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                bandwidth_bytes_per_second=gpu.bandwidth_bytes_per_second,
            )
            fit = fit_with(self._asked, self._layout, self._answer.weights, tokens, other)
            if not known(fit):
                return None
            if found is None or fit > found[1]:
                found = (other, fit)
            if fit >= self._answer.wanted:
                break
        return found

    def _half_the_heads(self) -> tuple[int, EngineLayout | Unavailable] | None:
        """The same model with half the K and V heads, for people who can still choose one."""
        layers = self._shape.layers
        heads = max((layer.kv_heads for layer in layers), default=0)
        if heads < 2 or any(layer.kv_heads % 2 and layer.kv_heads > 1 for layer in layers):
            return None
        fewer = tuple(
            replace(layer, kv_heads=layer.kv_heads // 2) if layer.kv_heads > 1 else layer for layer in layers
        )
        return heads // 2, engine_layout(replace(self._shape, layers=fewer), self._choices)


def _spread(machine: Machine) -> str:
    """The GPUs, and how they are divided where there is more than one replica."""
    told = f"{machine.gpus} x {machine.name}"
    if machine.replicas == 1:
        return told
    return f"{told}, {machine.replicas} replicas of {machine.parallelism.gpus}"
