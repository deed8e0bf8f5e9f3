"""Parameters of the vision tower of a multimodal model, with what joins it to the decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from exporter.kvmath.parameters import Config, width


def _tower(layers: int, hidden: int, inner: int, matrices: int = 2) -> int:
    return layers * (4 * hidden * hidden + matrices * hidden * inner)


def _merger(hidden: int, out: int) -> int:
    """Four patches become one token: two matrices."""
    return (4 * hidden) ** 2 + 4 * hidden * out


def _qwen2(v: Config, text: int) -> int:
    hidden = v.size("embed_dim")
    return _tower(v.size("depth"), hidden, hidden * v.size("mlp_ratio")) + _merger(hidden, text)


def _qwen25(v: Config, text: int) -> int:
    hidden = v.size("hidden_size")
    return _tower(v.size("depth"), hidden, v.size("intermediate_size"), 3) + _merger(hidden, text)


def _qwen3(v: Config, text: int) -> int:
    """One merger, and one more for every layer whose features go deeper into the decoder."""
    hidden = v.size("hidden_size")
    deep = v.fields.get("deepstack_visual_indexes")
    mergers = 1 + (len(deep) if isinstance(deep, list) else 0)
    tower = _tower(v.size("depth"), hidden, v.size("intermediate_size"))
    return tower + mergers * _merger(hidden, text) + v.size("num_position_embeddings", default=0) * hidden


def _siglip(v: Config, text: int) -> int:
    hidden = v.size("hidden_size")
    return _tower(v.size("num_hidden_layers"), hidden, v.size("intermediate_size")) + hidden * text


def _gemma4(v: Config, text: int) -> int:
    hidden = v.size("hidden_size")
    tower = _tower(v.size("num_hidden_layers"), hidden, v.size("intermediate_size"), 3)
    return tower + 2 * v.size("position_embedding_size") * hidden + hidden * text


def _llama4(v: Config, text: int) -> int:
    hidden, out = v.size("hidden_size"), v.size("vision_output_dim")
    tower = _tower(v.size("num_hidden_layers"), hidden, v.size("intermediate_size"))
    return tower + v.size("intermediate_size") * out + out * out + out * text


def _moonvit(v: Config, text: int) -> int:
    hidden = v.size("vt_hidden_size")
    tower = _tower(v.size("vt_num_hidden_layers"), hidden, v.size("vt_intermediate_size"))
    return tower + _merger(hidden, text)


_TOWERS: Final[Mapping[str, Callable[[Config, int], int]]] = {
    "gemma3": _siglip,
    "gemma4": _gemma4,
    "kimi_k25": _moonvit,
    "llama4": _llama4,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen25,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "qwen3_5": _qwen3,
    "qwen3_5_moe": _qwen3,
}


def vision_parameters(config: Mapping[str, object], text: Config) -> int | None:
    """Parameters beside the decoder; None where the wrapper is not counted.  Raises ``Refused``."""
    rule = _TOWERS.get(str(config.get("model_type")))
    vision = config.get("vision_config")
    if rule is None or not isinstance(vision, Mapping):
        return None
    return rule(Config(vision), width(text))
