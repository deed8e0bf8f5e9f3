"""The inputs of the arithmetic, each resolved from the sources that speak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exporter.engines.sample import EngineSample
from exporter.facts import Choice, Facts, Source, resolve, statements
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.model import ModelShape
from exporter.kvmath.overrides import Override

NO_WEIGHTS = Unavailable(Reason.MODEL_WEIGHTS, "no checkpoint directory")
NO_CONFIG = Unavailable(Reason.MODEL_CONFIG, "not looked for yet: the engine has not been read")
# What both engines do when nobody says otherwise.
DEFAULTS = Facts(
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    decode_context_parallel_size=1,
    kv_cache_dtype="auto",
    dtype="auto",
    hybrid_kv_cache_manager=True,
    speculative=False,
)
SGLANG_DEFAULTS = Facts(block_size=1).filled_from(DEFAULTS)
# Defaults that change a figure and that an engine may well have been started without:
# taking them is reported.
REPORT_ASSUMED = frozenset({"tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype", "block_size"})


@dataclass(frozen=True, slots=True)
class Model:
    """The model's shape, where its config.json came from ("none" without), and
    what the user set by hand instead."""

    shape: ModelShape | Unavailable = NO_CONFIG
    source: str = "none"
    location: str = ""
    weights_bytes: int | Unavailable = NO_WEIGHTS
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """Resolved inputs by name; ``choices`` keep source and disagreement for ``explain``."""

    model: Model
    choices: Mapping[str, Choice] = field(default_factory=dict)

    def count(self, name: str, reason: Reason) -> int | Unavailable:
        value = self.choices[name].value
        # A page may say 0 (SGLang's gauges before they are set): no block, length or capacity is.
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        return Unavailable(reason, f"nobody says {name}")

    def text(self, name: str) -> str:
        value = self.choices[name].value
        return value if isinstance(value, str) else ""

    def flag(self, name: str) -> bool | None:
        value = self.choices[name].value
        return value if isinstance(value, bool) else None


def choose(sample: EngineSample, facts: Mapping[Source, Facts], model: Model) -> Inputs:
    """Engine, then settings, then command line, then config, then default.

    Of the engine's two voices the info endpoints win over the page, whose
    ``max_model_len`` may be derived from other labels.
    """
    shape = model.shape
    page = Facts(
        block_size=_or_none(sample.block_tokens),
        max_model_len=_or_none(sample.max_model_len),
        kv_cache_dtype=sample.cache_dtype,
        state_dtype=sample.state_dtype,
        enable_prefix_caching=sample.prefix_caching,
        speculative=sample.speculative,
        tensor_parallel_size=sample.tensor_ranks,
        pipeline_parallel_size=sample.pipeline_ranks,
    )
    config = Facts(max_model_len=_or_none(shape.max_position_tokens)) if known(shape) else Facts()
    everyone = {
        **facts,
        Source.CONFIG: config,
        Source.DEFAULT: SGLANG_DEFAULTS if sample.software == "sglang" else DEFAULTS,
    }
    choices: dict[str, Choice] = {}
    for name in Facts.inputs():
        said = statements(name, everyone)
        at = sum(1 for source, _ in said if source is Source.ENGINE)
        said.insert(at, (Source.ENGINE, getattr(page, name)))
        if name == "max_model_len" and any(v is not None for s, v in said if s is not Source.CONFIG):
            # A config's position limit is a ceiling, no statement about what is served.
            said = [(s, v) for s, v in said if s is not Source.CONFIG]
        choices[name] = resolve(name, said)
    return Inputs(model, choices)


def _or_none(value: int | Unavailable) -> int | None:
    return value if known(value) else None
