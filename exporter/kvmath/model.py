"""config.json -> what the checkpoint is, as far as its KV cache goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.kvmath.dtypes import spelled
from exporter.kvmath.families import FAMILIES, UNCOVERED, WRAPPERS, Family
from exporter.kvmath.fields import LAYER_LIMIT, Fields, Refused, bad, unsupported
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache

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


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A checkpoint's caches and what its config says about dtypes and length.

    ``layers`` in depth order.  ``max_position_tokens`` is the config's figure;
    the engine's ``max_model_len`` may be lower or, with RoPE scaling, higher.
    ``dtype`` is "" where the config names none, ``checkpoint_cache_dtype`` ""
    where it carries no KV-cache scheme.  ``caches_per_decoder_layer`` is 2 where
    a decoder layer owns two entries of ``layers`` (LongCat).
    """

    model_type: str
    architectures: tuple[str, ...]
    layers: tuple[LayerCache, ...]
    max_position_tokens: int | Unavailable
    dtype: str
    checkpoint_cache_dtype: str
    attention_heads: int = 0  # query heads of the whole model; 0: not known
    caches_per_decoder_layer: int = 1

    @property
    def attention(self) -> str:
        """One word for a label: mha, gqa, mqa, mla, window (all layers) or window_mix (some)."""
        windowed = sum(layer.kind is Kind.WINDOW for layer in self.layers)
        if windowed:
            return "window" if windowed == len(self.layers) else "window_mix"
        if any(layer.kind is Kind.MLA for layer in self.layers):
            return "mla"
        kv_heads = max((layer.kv_heads for layer in self.layers), default=0)
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
        _covered(where, model_type)
    fields = Fields(text, {} if text is config else family.nested_defaults)
    count = fields.count(family.names.layers, LAYER_LIMIT)
    heads = family.heads(fields, family.names)
    layers = tuple(
        LayerCache(Kind.WINDOW if window else heads.kind, heads.kv, heads.k_dim, heads.v_dim, window)
        for window in family.windows(fields, count)
        for _ in range(family.caches_per_layer)
    )
    if heads.kind is Kind.MLA and any(layer.kind is Kind.WINDOW for layer in layers):
        raise unsupported(f"{model_type}: sliding_window on a latent cache")
    return ModelShape(
        model_type=model_type,
        architectures=_architectures(config) or _architectures(text),
        layers=layers,
        max_position_tokens=_positions(text),
        dtype=_dtype(config) or _dtype(text),
        checkpoint_cache_dtype=_checkpoint_cache_dtype(config) or _checkpoint_cache_dtype(text),
        attention_heads=heads.query,
        caches_per_decoder_layer=family.caches_per_layer,
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
        name = WRAPPERS[outer] if text.get("model_type") is None else _model_type(text)
    family = FAMILIES.get(name)
    if family is None:
        raise unsupported(f"model_type {name[:60]!r}: not a known family")
    return name, family


def _model_type(config: Mapping[str, object]) -> str:
    value = config.get("model_type")
    if not isinstance(value, str) or not value:
        raise bad("model_type: missing or not text")
    return value


def _covered(config: Mapping[str, object], model_type: str) -> None:
    """Refuse fields that change the cache in a way the family's rules do not know."""
    for name in UNCOVERED:
        if config.get(name):
            raise unsupported(f"{model_type}: {name}")
    kinds = config.get("attn_type_list")
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
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _POSITION_LIMIT:
            return value
    return Unavailable(Reason.MAX_MODEL_LEN, "config names no maximum position")


def _dtype(config: Mapping[str, object]) -> str:
    for name in ("dtype", "torch_dtype"):
        value = config.get(name)
        if isinstance(value, str) and value:
            return spelled(value)[:40]
    return ""


def _checkpoint_cache_dtype(config: Mapping[str, object]) -> str:
    """The KV-cache dtype a quantized checkpoint brings along, "" for none.

    compressed-tensors: any ``kv_cache_scheme`` means fp8.  ModelOpt: the scheme
    or ``kv_cache_quant_algo``, beside ``quant_algo`` or under "quantization"
    (vLLM 0.32.0 utils/torch_utils.py, SGLang 0.5.23 layers/quantization); a
    scheme the engines do not know they ignore, and so do we.
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return ""
    method = quantization.get("quant_method")
    if not isinstance(method, str):
        return ""
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
