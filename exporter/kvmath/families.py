"""Every model family this arithmetic knows: an allow-list, a ``model_type`` that is not here is not guessed.

Adding an architecture means adding an entry: to ``families_plain.py`` where all
layers have the same heads, else to ``families_mixed.py``, whose entries name a
rule that reads the model layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.kvmath.families_mixed import MIXED
from exporter.kvmath.families_plain import PLAIN
from exporter.kvmath.family import UNCOVERED, Family

__all__ = ["FAMILIES", "UNCOVERED", "WRAPPERS", "Family"]

FAMILIES: Final[Mapping[str, Family]] = {**PLAIN, **MIXED}

# Multimodal wrappers whose decoder is one of the families above -> the decoder's type where it names none.
# A wrapper that adds caches its decoder's own config does not show does not belong here.
WRAPPERS: Final[Mapping[str, str]] = {
    "deepseek_vl_v2": "deepseek_v2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "internvl": "qwen2",
    "internvl_chat": "qwen2",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "minimax_m3_vl": "minimax_m3",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "step3_vl": "step3_text",
    "voxtral": "llama",
}
