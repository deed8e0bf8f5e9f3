"""How the engines draft tokens: the methods by name, and what each adds to the cache."""

from __future__ import annotations

from typing import Final

from exporter.kvmath.known import Reason, Unavailable

# The checkpoint's own draft layers, as vLLM 0.32.0 config/speculative.py (``MTPModelTypes``, which it
# turns into "mtp") and SGLang (its server arguments' NEXTN) spell them.
_MTP_MODELS: Final = (
    "bailing_hybrid bailing_hybrid_v3 deepseek dots3_note ernie exaone4_5 exaone_moe gemma4 glm4_moe "
    "glm4_moe_lite glm5_next glm_ocr hy_v3 hy_v4 inkling kimi_k3 longcat_flash mimo mimo_v2 minimax_m3 "
    "nemotron_h pangu_ultra_moe qwen3_5 qwen3_next qwen4_exp step3p5"
)
MTP_SPELLINGS: Final = frozenset({"mtp", "nextn", *(f"{name}_mtp" for name in _MTP_MODELS.split())})
# vLLM's other methods, and SGLang's 0.5.23 speculative/spec_info.py.
_NO_CACHE: Final = {"vllm": frozenset({"ngram", "ngram_gpu", "suffix"}), "sglang": frozenset({"ngram"})}
_DRAFT_MODEL: Final = {
    "vllm": frozenset(
        {
            "custom_class",
            "dflash",
            "draft_model",
            "dspark",
            "eagle",
            "eagle3",
            "extract_hidden_states",
            "medusa",
            "mlp_speculator",
        }
    ),
    "sglang": frozenset({"dflash", "dspark", "eagle", "eagle3", "frozen_kv_mtp", "standalone", "uno"}),
}
# One thing, two names.
_SAME: Final = {"vllm": {"standalone": "draft_model"}, "sglang": {"draft_model": "standalone"}}
METHODS: Final = MTP_SPELLINGS.union(*_NO_CACHE.values(), *_DRAFT_MODEL.values())


def method_of(name: str) -> str:
    """A method in lower case, every spelling of multi-token prediction as "mtp"."""
    word = name.lower().replace("-", "_")
    return "mtp" if word in MTP_SPELLINGS else word


def known_method(name: str | None) -> str | None:
    """:func:`method_of`, None where neither engine has such a method."""
    word = method_of(name or "")
    return word if word in METHODS else None


def draft_problem(engine: str, method: str, has_drafts: bool) -> Unavailable | None:
    """Why the layout with this method cannot be told, and what would; None where it can.

    ``has_drafts``: the checkpoint has draft layers of its own.
    """
    method = _SAME[engine].get(method, method)
    if not method or method in _NO_CACHE[engine]:
        return None
    if method == "mtp":
        if has_drafts:
            return None
        # vLLM 0.32.0 config/speculative.py: "Unsupported speculative method: 'mtp'".
        refuses = "vLLM refuses to start" if engine == "vllm" else "SGLang has nothing to draft with"
        detail = f"mtp: no draft layers known in this model; {refuses}"
    elif method in _DRAFT_MODEL[engine]:
        detail = (
            f"{method}: the draft model is a checkpoint of its own, and its layers share the pool; "
            "give --bytes-per-token of both models together"
        )
    else:
        detail = f"{method}: not a method of {engine}"
    return Unavailable(Reason.SPECULATIVE_DECODING, detail)
