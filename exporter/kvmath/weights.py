"""How many parameters a config.json describes: an estimate, for checkpoints whose files are elsewhere.

The engine's own count (vLLM 0.32.0 building every model without weights) is the
yardstick: within 1 % for each family listed here, and no figure for any other.
Biases and norms are left out unless they matter (they are below 0.1 %).
A wrapper needs a rule for its vision tower, too; audio towers are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.kvmath import parameters as parts
from exporter.kvmath import parameters_mixed as mixed
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.parameter_rules import RULES, Rule
from exporter.kvmath.parameters import LayerWeights
from exporter.kvmath.parameters_vision import vision_parameters


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Parameters of a model.  ``head`` is 0 where the output shares the embedding's matrix."""

    embedding: int
    head: int
    layers: tuple[LayerWeights, ...]
    vision: int = 0  # the tower of a multimodal model
    mixers: tuple[str, ...] = ()  # per layer, what the checkpoint calls its attention or mixer
    shared_module: str = "mlp.shared_experts"
    expert_module: str = "mlp.experts"
    experts_per_token: int = 0
    experts_per_layer: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.head + self.vision + sum(layer.total for layer in self.layers)

    @property
    def active(self) -> int:
        """Parameters one token's decode step multiplies: of the experts only those it is sent to."""
        idle = self.vision
        if self.experts_per_layer:
            for layer in self.layers:
                per_expert = layer.experts // self.experts_per_layer
                idle += layer.experts - per_expert * min(self.experts_per_token, self.experts_per_layer)
        return self.total - idle


def model_weights(config: Mapping[str, object]) -> ModelWeights | Unavailable:
    """The parameters ``config`` describes, draft and MTP layers left out.

    Never raises.  ``Unavailable(MODEL_WEIGHTS)`` for families that are not
    counted here and for configs that lack a size, ``BAD_MODEL_CONFIG`` where a
    size is no number; the detail names the field.
    """
    text = _decoder(config)
    model_type = text.get("model_type")
    rule = RULES.get(model_type) if isinstance(model_type, str) else None
    if rule is None:
        return Unavailable(
            Reason.MODEL_WEIGHTS, f"model_type {str(model_type)[:60]!r}: parameters are not estimated"
        )
    given = {name: value for name, value in text.items() if value is not None}
    c = parts.Config(text if text is config else {**rule.nested_defaults, **given})
    try:
        vision = 0
        if text is not config or "vision_config" in config:
            found = vision_parameters(config, c)
            if found is None:
                return Unavailable(
                    Reason.MODEL_WEIGHTS,
                    f"model_type {str(config.get('model_type'))[:60]!r}: its other parts are not estimated",
                )
            vision = found
        return _counted(rule, c, _tied(rule, config, text), vision)
    except parts.Refused as problem:
        reason = Reason.BAD_MODEL_CONFIG if problem.malformed else Reason.MODEL_WEIGHTS
        return Unavailable(reason, problem.detail)


def _decoder(config: Mapping[str, object]) -> Mapping[str, object]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _tied(rule: Rule, config: Mapping[str, object], text: Mapping[str, object]) -> bool:
    """Whether embedding and output are one matrix: the outer config decides where it says so."""
    if rule.tied_always:
        return True
    for where in (config, text):
        for name in ("tie_word_embeddings", "tie_embedding"):
            if isinstance(value := where.get(name), bool):
                return value
    return rule.tied


def _counted(rule: Rule, c: parts.Config, tied: bool, vision: int) -> ModelWeights:
    layers = _layer_count(rule, c)
    embedding = c.size(*rule.vocabulary) * parts.width(c)
    positions = c.size("n_positions", default=0) * parts.width(c) if rule.positions else 0
    found = tuple(
        rule.mlp(c, layer, rule.attention_per_layer * rule.attention(c, layer)) for layer in range(layers)
    )
    sparse = any(layer.experts for layer in found)
    return ModelWeights(
        embedding=embedding + positions,
        head=0 if tied else embedding,
        layers=found,
        vision=vision,
        mixers=tuple(rule.modules.mixer(c, layer) for layer in range(layers)),
        shared_module=rule.modules.shared,
        expert_module=rule.modules.experts,
        experts_per_token=_expert_count(c, parts.EXPERTS_PER_TOKEN) if sparse else 0,
        experts_per_layer=_expert_count(c, parts.EXPERTS) if sparse else 0,
    )


def _layer_count(rule: Rule, c: parts.Config) -> int:
    # Nemotron 3 Ultra names its layers one by one and gives no number.
    count = c.size(*rule.layers, default=len(mixed.words(c, "layers_block_type", "block_configs")))
    if not 1 <= count <= parts.LAYER_LIMIT:
        raise parts.Refused(f"{rule.layers[0]}: not a layer count")
    return count


def _expert_count(c: parts.Config, names: tuple[str, ...]) -> int:
    inner = c.fields.get("ffn_config")
    nested = parts.Config(inner if isinstance(inner, Mapping) else {}).size(*names, default=0)
    return c.size(*names, default=nested)
