"""config.json -> what the checkpoint is, as far as its KV cache goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.kvmath.dtypes import element_bytes, spelled
from exporter.kvmath.families import FAMILIES, UNCOVERED, WRAPPERS, Family
from exporter.kvmath.families_mixed import MIXED
from exporter.kvmath.fields import Fields, Refused, bad, unsupported
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.layers import RECENT_TOKENS, Kind, LayerCache

# Where a multimodal config keeps its decoder, in order.
_TEXT_CONFIGS: Final = ("text_config", "language_config", "llm_config")
_POSITIONS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
)
_POSITION_LIMIT: Final = 10**9
# Names PyTorch has beside those a cache is stored in.
_TORCH_DTYPE: Final = re.compile(r"double|float64|u?int(8|16|32|64)|float8_e8m0fnu|float4_e2m1fn_x2")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A checkpoint's caches and what its config says about dtypes and length.

    ``layers``: every cache, in the order the engine creates them.  ``depths``: the
    decoder layer each belongs to, empty where each decoder layer owns exactly one;
    ``decoder_layers`` counts those without a cache too, 0 for one per cache.
    ``draft_layers``: caches multi-token prediction adds when the engine runs it.
    ``max_position_tokens`` is the config's figure; the engine's ``max_model_len``
    may be lower or, with RoPE scaling, higher.  ``dtype`` is "" where the config
    names none, ``checkpoint_cache_dtype`` "" where neither the checkpoint nor the
    model's code fixes the cache's dtype.
    """

    model_type: str
    architectures: tuple[str, ...]
    layers: tuple[LayerCache, ...]
    max_position_tokens: int | Unavailable
    dtype: str
    checkpoint_cache_dtype: str
    attention_heads: int = 0  # query heads of the whole model; 0: none, or not one number
    depths: tuple[int, ...] = ()
    decoder_layers: int = 0
    draft_layers: tuple[LayerCache, ...] = ()

    def depth(self, number: int) -> int:
        """The decoder layer that owns cache ``number``."""
        return self.depths[number] if self.depths else number

    @property
    def decoder_depth(self) -> int:
        """Decoder layers, those without a cache included: what pipeline stages are cut from."""
        return self.decoder_layers or len(self.layers)

    def has(self, kind: Kind) -> bool:
        """True where some layer keeps this kind of cache."""
        return any(layer.kind is kind for layer in self.layers)

    @property
    def attention(self) -> str:
        """One word for a label.

        mha, gqa, mqa or mla (every token kept, indexers aside), window (all layers), window_mix (some; chunks
        count), compressed (DeepSeek V4), hybrid (states beside attention), state (states alone).
        """
        kinds = {layer.kind for layer in self.layers}
        if Kind.STATE in kinds:
            return "state" if kinds == {Kind.STATE} else "hybrid"
        if Kind.RECORD_WINDOW in kinds:
            return "compressed"
        if recent := kinds & RECENT_TOKENS:
            return "window" if recent == kinds else "window_mix"
        if Kind.MLA in kinds:
            return "mla"
        kv_heads = max((layer.kv_heads for layer in self.layers if layer.kind is Kind.FULL), default=0)
        if kv_heads == self.attention_heads:
            return "mha"
        return "mqa" if kv_heads == 1 else "gqa"


def read_model(config: Mapping[str, object]) -> ModelShape | Unavailable:
    """The shape of the model a config.json describes.

    Never raises, whatever JSON it is given: ``Unavailable(BAD_MODEL_CONFIG)``
    where a field is missing, malformed or contradicts another,
    ``Unavailable(UNSUPPORTED_ATTENTION)`` for a ``model_type`` that is not on the
    list and for fields that mean a cache not covered.  The detail names the field.
    """
    if not isinstance(config, Mapping):
        return Unavailable(Reason.BAD_MODEL_CONFIG, "config: expected an object")
    try:
        return _read(config)
    except Refused as problem:
        return problem.unavailable


def _read(config: Mapping[str, object]) -> ModelShape:
    text = _text_config(config)
    model_type, family = _family(config, text)
    for where in (config, text):
        _covered(where, model_type, family)
    fields = Fields(text, {} if text is config else family.nested_defaults)
    stack = family.read(fields, model_type)
    owned = [(depth, cache) for depth, caches in enumerate(stack.layers) for cache in caches]
    layers = tuple(cache for _, cache in owned)
    depths = tuple(depth for depth, _ in owned)
    outer, inner = (_dtype(where) for where in (config, text))
    schemes = [_checkpoint_cache_dtype(where) for where in (config, text)]
    one_each = depths == tuple(range(len(stack.layers)))
    return ModelShape(
        model_type=model_type,
        architectures=_architectures(config) or _architectures(text),
        layers=layers,
        max_position_tokens=_positions(text),
        dtype=outer or inner,
        checkpoint_cache_dtype=family.cache_dtype or schemes[0] or schemes[1],
        attention_heads=stack.query_heads,
        depths=() if one_each else depths,
        decoder_layers=0 if one_each else len(stack.layers),
        draft_layers=family.drafts(fields, family.names, stack),
    )


def _text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The decoder's own config: nested in a multimodal one, else the config itself."""
    thinker = config.get("thinker_config")
    for outer in (thinker, config):
        if isinstance(outer, Mapping):
            for name in _TEXT_CONFIGS:
                inner = outer.get(name)
                if isinstance(inner, Mapping):
                    return inner
                if inner is not None:
                    raise bad(f"{name}: expected an object, found {type(inner).__name__}")
    return config


def _family(config: Mapping[str, object], text: Mapping[str, object]) -> tuple[str, Family]:
    outer = _model_type(config)
    name = outer
    if text is not config:
        # The wrapper must be known too: it may add caches its decoder's config does not show.
        if outer not in WRAPPERS:
            raise unsupported(f"model_type {outer[:60]!r}: not a known wrapper of a text model")
        expected = WRAPPERS[outer]
        name = expected if text.get("model_type") is None else _model_type(text)
        if expected in MIXED and name != expected:
            # The wrapper stands for a decoder with rules of its own; another one inside is a contradiction.
            raise unsupported(f"model_type {name[:60]!r}: inside {outer[:60]!r}")
    family = FAMILIES.get(name)
    if family is None:
        raise unsupported(f"model_type {name[:60]!r}: not a known family")
    return name, family


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type")
    if not isinstance(value, str) or not value:
        raise bad("model_type: missing or not text")
    return value


def _covered(config: Mapping[str, object], model_type: str, family: Family) -> None:
    """Refuse fields that change the cache in a way the family's rules do not know."""
    for name in UNCOVERED:
        if config.get(name) and name not in family.reads:
            raise unsupported(f"{model_type}: {name}")
    kinds = config.get("attn_type_list")
    if "attn_type_list" in family.reads:
        return
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise unsupported(f"{model_type}: attn_type_list names linear layers")


def _architectures(config: Mapping[str, object]) -> tuple[str, ...]:
    value = config.get("architectures")
    if not isinstance(value, list):
        return ()
    return tuple(name for name in value[:8] if isinstance(name, str))


def _positions(config: Mapping[str, object]) -> int | Unavailable:
    for name in _POSITIONS:
        value = config.get(name)
        # A tokenizer's 10^30 stands for "no limit".
        if value is None or (isinstance(value, int | float) and value > _POSITION_LIMIT):
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad(f"{name}: expected a whole number, found {type(value).__name__}")
        if value < 1:
            raise bad(f"{name}: below 1")
        return value
    return Unavailable(Reason.MAX_MODEL_LEN, "config names no maximum position")


def _dtype(config: Mapping[str, object]) -> str:
    """The dtype ``config`` names, "" for none."""
    found = ""
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise bad(f"{name}: expected text, found {type(value).__name__}")
        word = spelled(value)
        if word in ("", "auto") or known(element_bytes(word)) or _TORCH_DTYPE.fullmatch(word):
            found = found or word
        else:
            raise bad(f"{name}: not the name of a dtype")
    return found


def _checkpoint_cache_dtype(config: Mapping[str, object]) -> str:
    """The KV-cache dtype a quantized checkpoint brings along, "" for none.

    compressed-tensors: any ``kv_cache_scheme`` means fp8.  ModelOpt: the scheme
    or ``kv_cache_quant_algo``, beside ``quant_algo`` or under "quantization"
    (vLLM 0.32.0 utils/torch_utils.py, SGLang 0.5.23 layers/quantization); a
    scheme the engines do not know they ignore, and so do we.
    """
    quantization = config.get("quantization_config")
    if quantization is None:
        return ""
    if not isinstance(quantization, Mapping):
        raise bad(f"quantization_config: expected an object, found {type(quantization).__name__}")
    method = quantization.get("quant_method")
    if method is None:
        return ""
    if not isinstance(method, str):
        raise bad(f"quantization_config: quant_method: expected text, found {type(method).__name__}")
    if method.replace("_", "-") == "compressed-tensors":
        return "fp8" if isinstance(quantization.get("kv_cache_scheme"), Mapping) else ""
    if not method.startswith("modelopt"):
        return ""
    inner = quantization.get("quantization")
    places = (inner, quantization) if isinstance(inner, Mapping) else (quantization,)
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for place in places:
            if place.get(name):
                return _modelopt(place[name])
    return ""


def _modelopt(scheme: object) -> str:
    if isinstance(scheme, Mapping):
        if scheme.get("type") != "float":
            return ""
        bits = scheme.get("num_bits")
        if bits == 8 and scheme.get("dynamic", False) is False:
            return "fp8_e4m3"
        return "nvfp4" if bits == 4 else ""
    if isinstance(scheme, str):
        return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(scheme.lower(), "")
    return ""
