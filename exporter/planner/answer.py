"""A question and a checkpoint -> every figure of the plan."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.model import ModelShape
from exporter.kvmath.plan import ContextPlan, Deployment, Pool, longest_admitted, plan_context, pool_of
from exporter.planner.checkpoint import Weights
from exporter.planner.layouts import EngineLayout, engine_layout
from exporter.planner.question import Machine, Question


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan of one replica.  ``fits``: every context within the model's length, for the sequences asked
    (one, if none were), beside the weights."""

    question: Question
    shape: ModelShape | Unavailable
    weights: Weights | Unavailable
    deployment: Deployment
    layout: EngineLayout | Unavailable
    pool: Pool | Unavailable
    contexts: tuple[ContextPlan, ...]
    max_model_len: int | Unavailable

    @property
    def wanted(self) -> int:
        """Sequences that must fit in one replica."""
        return self.question.sequences or 1

    def beyond(self, context: ContextPlan) -> bool:
        """True where ``context`` is longer than the model, or the engine, goes."""
        return known(self.max_model_len) and context.tokens > self.max_model_len

    @property
    def decisive(self) -> tuple[ContextPlan, ...]:
        """The contexts the model can serve; all, where it can serve none."""
        return tuple(c for c in self.contexts if not self.beyond(c)) or self.contexts

    def fits_at(self, context: ContextPlan) -> bool | Unavailable:
        """Whether the sequences wanted fit at this context."""
        return context.fit_sharing >= self.wanted if known(context.fit_sharing) else context.fit_sharing

    @property
    def longest_served(self) -> int | Unavailable:
        """The longest max_model_len, up to the one asked for, with which the engine starts."""
        if not known(self.layout):
            return self.layout
        if not known(self.pool):
            return self.pool
        if not known(self.max_model_len):
            return self.max_model_len
        return longest_admitted(
            self.layout, self.pool.blocks, self.question.in_flight_tokens, self.max_model_len
        )

    @property
    def fits(self) -> bool | Unavailable:
        """The whole question in one word."""
        if not known(self.layout):
            return self.layout
        verdicts = [self.fits_at(context) for context in self.decisive]
        for verdict in verdicts:
            if not known(verdict):
                return verdict
        return all(verdicts)


def answer(asked: Question, shape: ModelShape | Unavailable, weights: Weights | Unavailable) -> Answer:
    """Every figure; what cannot be known is ``Unavailable`` in its place."""
    deployment = deployment_of(asked, asked.machine, weights)
    layout = engine_layout(shape, asked.choices)
    pool = pool_of(deployment, layout) if known(layout) else layout
    length: int | Unavailable = asked.max_model_len or (shape.max_position_tokens if known(shape) else shape)
    return Answer(
        question=asked,
        shape=shape,
        weights=weights,
        deployment=deployment,
        layout=layout,
        pool=pool,
        contexts=tuple(context_plan(asked, layout, deployment, pool, tokens) for tokens in asked.contexts)
        if known(layout)
        else (),
        max_model_len=length,
    )


def deployment_of(asked: Question, machine: Machine, weights: Weights | Unavailable) -> Deployment:
    """The GPUs of one replica of ``machine`` with these weights in them."""
    return Deployment(
        gpus=machine.parallelism.gpus,
        memory_bytes=machine.memory_bytes,
        utilization=asked.utilization,
        overhead_bytes=asked.overhead_bytes,
        weights_bytes=weights.bytes if known(weights) else weights,
        bandwidth_bytes_per_second=machine.bandwidth_bytes_per_second,
        price_per_hour=asked.price_per_hour,
    )


def context_plan(
    asked: Question, layout: EngineLayout, deployment: Deployment, pool: Pool | Unavailable, tokens: int
) -> ContextPlan:
    """One context of the question."""
    return plan_context(
        layout,
        deployment,
        pool,
        tokens,
        asked.in_flight_tokens,
        asked.shared_prefix_tokens if asked.choices.prefix_caching else 0,
        asked.sequences,
    )


def fit_with(
    asked: Question,
    layout: EngineLayout | Unavailable,
    weights: Weights | Unavailable,
    tokens: int,
    machine: Machine | None = None,
) -> int | Unavailable:
    """How many sequences of ``tokens`` tokens would fit with another layout, weights or machine."""
    if not known(layout):
        return layout
    deployment = deployment_of(asked, machine or asked.machine, weights)
    return context_plan(asked, layout, deployment, pool_of(deployment, layout), tokens).fit_sharing
