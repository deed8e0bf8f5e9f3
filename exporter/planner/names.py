"""Names people give for a cache dtype or a draft method, checked before anything is worked out."""

from __future__ import annotations

import difflib
from typing import Final

from exporter.kvmath.dtypes import resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.model import ModelShape
from exporter.kvmath.speculation import METHODS, MTP_SPELLINGS, method_of

# The usual ones, for a message; which names are accepted, ``resolve_cache_dtype`` decides.
CACHE_DTYPES: Final = (
    "auto",
    "bfloat16",
    "float16",
    "float32",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_ds_mla",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "mxfp8",
    "nvfp4",
    "nvfp4_ds_mla",
)
# A dtype somebody asked for decides alone, whatever the model.
_ANY_MODEL: Final = ModelShape("", (), (), Unavailable(Reason.MAX_MODEL_LEN), "", "")


def cache_dtype(name: str) -> str:
    """``name`` as it came, for --kv-cache-dtype.  Raises ``ValueError`` where no engine uses it."""
    if not known(resolve_cache_dtype(name, "bfloat16", _ANY_MODEL)):
        raise ValueError(_not_known("--kv-cache-dtype", name, CACHE_DTYPES))
    return name


def draft_method(name: str) -> str:
    """--speculative in lower case, every spelling of multi-token prediction as "mtp", "" for none.

    Raises ``ValueError`` for a method neither engine has.
    """
    word = method_of(name)
    if word and word not in METHODS:
        shown = sorted(METHODS - MTP_SPELLINGS | {"mtp", "nextn"})
        raise ValueError(_not_known("--speculative", name, shown))
    return word


def _not_known(flag: str, name: str, names: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=4) or names
    return f"{flag} {name[:40]!r}: not known; did you mean {', '.join(near)}?"
