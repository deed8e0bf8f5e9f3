"""Cache dtypes: how the engines spell them, and the bytes one element takes.

Only dtypes that take the same bytes per element whatever the head size are
sized here.  Formats with scales beside the values (nvfp4, int8_per_token_head,
fp8_ds_mla, ...) need the vector length: ``formats.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from exporter.kvmath.known import Reason, Unavailable

if TYPE_CHECKING:
    from exporter.kvmath.model import ModelShape

_SPELLINGS: Final = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
}
_BYTES: Final = {
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}
_TORCH_FP8: Final = re.compile(r"float8_e\dm\d(fn|fnuz)?")

# Cache dtypes the engines accept (vLLM 0.32.0 utils/torch_utils.py, SGLang 0.5.23
# mem_cache/kv_cache_dtype.py) that carry scales: named as the engine names them, not sized here.
_SCALED: Final = frozenset(
    {
        "fp8_ds_mla",
        "fp8_per_token_head",
        "fp4_mx_block16",
        "int4_per_token_head",
        "int8_per_token_head",
        "mxfp8",
        "nvfp4",
        "nvfp4_4over6",
        "nvfp4_ds_mla",
        "turboquant_3bit_nc",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_k8v4",
        "ultraquant_4bit",
    }
)


def spelled(name: str) -> str:
    """``name`` in the engines' spelling: lower case, no ``torch.``, bf16 -> bfloat16, half -> float16."""
    word = name.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(word, word)


def element_bytes(name: str) -> int | Unavailable:
    """Bytes of one cached element: 4 (float32), 2 (bfloat16, float16) or 1 (the fp8 family).

    ``Unavailable(KV_CACHE_DTYPE)`` for "auto" (resolve it first), for formats
    with scales beside the values and for names no engine uses.
    """
    word = spelled(name)
    size = 1 if _TORCH_FP8.fullmatch(word) else _BYTES.get(word)
    if size is None:
        return Unavailable(Reason.KV_CACHE_DTYPE, f"{word[:40]!r}: bytes per element not known")
    return size


def resolve_cache_dtype(requested: str, model_dtype: str, shape: ModelShape) -> str | Unavailable:
    """The dtype the cache is stored in, spelled as the engines spell it ("bfloat16", "fp8_e4m3", ...).

    ``requested`` is the engine's ``kv_cache_dtype``; anything but "auto" or ""
    decides alone.  "auto" means the checkpoint's own KV-cache scheme where it
    has one, else the dtype the model runs in: ``model_dtype`` (the engine's
    ``dtype``) where explicit, else the config's.  Under dtype "auto" both
    engines load a float32 checkpoint, or one that names no dtype, in 16 bits
    (vLLM 0.32.0 config/model.py ``_resolve_auto_dtype``; SGLang 0.5.23
    configs/model_config.py ``_get_and_verify_dtype``).  Which 16-bit type that
    is differs (vLLM mostly bfloat16, SGLang float16 except for Gemma) and does
    not change a byte, so it is called "bfloat16" here.

    ``Unavailable(KV_CACHE_DTYPE)`` where the deciding name is none an engine uses.
    """
    if (word := spelled(requested)) not in ("", "auto"):
        return _accepted(word, "kv_cache_dtype")
    if shape.checkpoint_cache_dtype:
        return _accepted(spelled(shape.checkpoint_cache_dtype), "quantization_config")
    if (word := spelled(model_dtype)) not in ("", "auto"):
        return _accepted(word, "dtype")
    word = spelled(shape.dtype)
    if word in ("", "auto", "float32"):
        return "bfloat16"
    return _accepted(word, "config dtype")


def _accepted(word: str, source: str) -> str | Unavailable:
    if word in _BYTES or word in _SCALED or _TORCH_FP8.fullmatch(word):
        return word
    return Unavailable(Reason.KV_CACHE_DTYPE, f"{source} {word[:40]!r}: no engine uses this name")
