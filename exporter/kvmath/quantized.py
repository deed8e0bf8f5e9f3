"""Bytes of a checkpoint's weights in an engine's memory, quantization included.

A quantizer converts matrices and leaves the embedding, the output head, norms and
routers in 16 bits, except what its ignore list adds to them.  Scales beside the
values: one float32 per 128 x 128 block (DeepSeek's fp8), 16 bits per group (AWQ,
GPTQ, compressed-tensors), one byte per 16 (nvfp4) or 32 values (mxfp4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from exporter.kvmath.dtypes import spelled
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.weights import ModelWeights

# Bytes per parameter of --weights-dtype: every parameter in this format, scales included.
WEIGHT_BYTES: Final[Mapping[str, float]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "int4": 0.5,
    "awq": 0.5,
    "gptq": 0.5,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
# Of ModelOpt's algorithms: nvfp4 has a byte of scale per group of 16.
_MIXED_BYTES: Final[Mapping[str, float]] = {"FP8": 1, "NVFP4": 0.5 + 1 / 16, "W4A16_NVFP4": 0.5 + 1 / 16}
_PLAIN_BYTES: Final = 2  # of a parameter nobody quantized
_LAYER_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How matrices are stored: bytes per parameter of a module by its name, and of the output head."""

    name: str
    bytes_of: Callable[[str], float]
    head_bytes: float = _PLAIN_BYTES


def _uniform(name: str, size: float, ignored: Callable[[str], bool], experts_only: bool = False) -> _Scheme:
    """All matrices but those ignored, or the experts alone, take ``size`` bytes per parameter."""

    def bytes_of(module: str) -> float:
        alone = ignored(module) or (experts_only and ".experts." not in module)
        return _PLAIN_BYTES if alone else size

    return _Scheme(name, bytes_of)


def weight_bytes_per_parameter(dtype: str) -> float | Unavailable:
    """Bytes of one parameter under ``--weights-dtype``; ``Unavailable(MODEL_WEIGHTS)`` for other names."""
    size = WEIGHT_BYTES.get(spelled(dtype))
    if size is None:
        return Unavailable(Reason.MODEL_WEIGHTS, f"{dtype[:40]!r} is none of {', '.join(WEIGHT_BYTES)}")
    return size


def quantization_of(config: Mapping[str, object]) -> Mapping[str, object]:
    """The config's ``quantization_config``, or its text model's; empty where there is none."""
    quantization = config.get("quantization_config")
    if not quantization and isinstance(text := config.get("text_config"), Mapping):
        quantization = text.get("quantization_config")
    return quantization if isinstance(quantization, Mapping) else {}


def loaded_bytes(weights: ModelWeights, config: Mapping[str, object]) -> tuple[int, str] | Unavailable:
    """(bytes in all GPUs together, what the matrices are stored as), each GPU's own copies not counted.

    Without a ``quantization_config``: 2 bytes a parameter, for engines load a
    float32 checkpoint in 16 bits.  ``Unavailable(MODEL_WEIGHTS)`` for a scheme not
    known here.
    """
    quantization = quantization_of(config)
    if not quantization:
        return weights.total * 2, "16 bits"
    scheme = _scheme(quantization)
    if isinstance(scheme, Unavailable):
        return scheme
    plain = weights.embedding + weights.vision
    stored = weights.head * scheme.head_bytes
    for number, layer in enumerate(weights.layers):
        plain += layer.router
        dense = weights.shared_module if layer.experts else "mlp"
        for count, name in (
            (layer.attention, f"model.layers.{number}.{weights.mixers[number]}.o_proj"),
            (
                layer.mlp,
                f"model.layers.{number}.{dense}.down_proj",
            ),
            (layer.experts, f"model.layers.{number}.{weights.expert_module}.0.down_proj"),
        ):
            stored += count * scheme.bytes_of(name)
    return plain * _PLAIN_BYTES + math.ceil(stored), scheme.name


def _scheme(quantization: Mapping[str, object]) -> _Scheme | Unavailable:
    method = quantization.get("quant_method")
    method = method.lower().replace("_", "-") if isinstance(method, str) else ""
    inner = quantization.get("quantization")
    places = (quantization, inner) if isinstance(inner, Mapping) else (quantization,)
    ignored = _ignored([name for place in places for name in _listed(place)])
    if method in ("fp8", "fbgemm-fp8") and not quantization.get("quant_algo"):
        match quantization.get("weight_block_size"):
            case [int(rows), int(columns)] if rows > 0 and columns > 0:
                scale = 4 / (rows * columns)
            case _:
                scale = 0
        return _uniform("fp8", 1 + scale, ignored)
    if method in ("awq", "gptq"):
        bits, group = _whole(quantization.get("bits")), _whole(quantization.get("group_size"))
        if bits in (2, 3, 4, 8):
            # A 16-bit scale and a zero point of the weight's own width per group.
            scale = (2 + bits / 8) / group if group > 0 else 0
            return _uniform(f"{method} {bits} bits", bits / 8 + scale, ignored)
    if method == "mxfp4":
        return _uniform("mxfp4 experts", 0.5 + 1 / 32, ignored, experts_only=True)
    if method.startswith("modelopt"):
        algorithm = next((place[k] for place in places for k in ("quant_algo",) if place.get(k)), "")
        if algorithm == "MIXED_PRECISION":
            return _mixed(places)
        size = {"fp8": 1.0, "nvfp4": 0.5 + 1 / 16}.get(str(algorithm).lower())
        if size is not None:
            return _uniform(str(algorithm).lower(), size, ignored)
    if method == "compressed-tensors":
        return _compressed(quantization, ignored)
    return Unavailable(Reason.MODEL_WEIGHTS, f"quant_method {method[:40]!r}: bytes per weight not known")


def _mixed(places: tuple[Mapping[str, object], ...]) -> _Scheme | Unavailable:
    """ModelOpt's MIXED_PRECISION: ``quantized_layers`` names the algorithm of each matrix; the rest is plain.

    A part of a layer is counted in one piece, so it goes by the matrices in it: small
    ones that are left alone beside them (a gate's, a convolution) count as they do.
    """
    listed = next((place["quantized_layers"] for place in places if place.get("quantized_layers")), None)
    sizes: dict[str, float] = {}
    for name, how in listed.items() if isinstance(listed, Mapping) else ():
        algorithm = how.get("quant_algo") if isinstance(how, Mapping) else None
        size = _MIXED_BYTES.get(str(algorithm).upper())
        if not isinstance(name, str) or size is None:
            return Unavailable(Reason.MODEL_WEIGHTS, "quantized_layers: an algorithm of unknown width")
        module = _without_wrapper(name)
        around, _, last = module.rpartition(".")
        # A mixer or MLP goes by its matrices; what holds a whole part (experts, a layer) tells nothing.
        inside = around.count(".") >= 3 and "expert" not in last
        for part in (module, around) if inside else (module,):
            if sizes.setdefault(part, size) != size:
                return Unavailable(Reason.MODEL_WEIGHTS, "quantized_layers: different widths in one part")
    if not sizes:
        return Unavailable(Reason.MODEL_WEIGHTS, "quantized_layers: missing")

    def bytes_of(module: str) -> float:
        return next((sizes[part] for part in _parents(module) if part in sizes), _PLAIN_BYTES)

    return _Scheme("mixed precision", bytes_of, sizes.get("lm_head", _PLAIN_BYTES))


def _compressed(quantization: Mapping[str, object], ignored: Callable[[str], bool]) -> _Scheme | Unavailable:
    groups = quantization.get("config_groups")
    sizes = set()
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        bits = _whole(weights.get("num_bits")) if isinstance(weights, Mapping) else 0
        if not isinstance(weights, Mapping) or bits not in (4, 8):
            return Unavailable(Reason.MODEL_WEIGHTS, "config_groups: weights without num_bits of 4 or 8")
        size = _whole(weights.get("group_size"))
        scale_bytes = 1 if bits == 4 and weights.get("type") == "float" else 2
        sizes.add((bits, bits / 8 + (scale_bytes / size if size > 0 else 0)))
    if len(sizes) != 1:
        return Unavailable(Reason.MODEL_WEIGHTS, "config_groups: none, or of different widths")
    bits, size_bytes = sizes.pop()
    return _uniform(f"compressed-tensors {bits} bits", size_bytes, ignored)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _listed(quantization: Mapping[str, object]) -> list[str]:
    names = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"):
        value = quantization.get(key)
        if isinstance(value, list):
            names += [name for name in value if isinstance(name, str)]
    return names


def _ignored(names: list[str]) -> Callable[[str], bool]:
    """Whether a module is on the ignore list: by name, by parent, by one word, by "re:" or by "*" pattern."""
    exact, patterns, words = set(), [], set()
    for name in names:
        try:
            if name.startswith("re:"):
                patterns.append(re.compile(name[3:]))
            elif "*" in name:
                pieces = map(re.escape, _without_wrapper(name).split("*"))
                patterns.append(re.compile(".*".join(pieces) + "$"))
            elif "." in name:
                exact.add(_without_wrapper(name))
            else:
                words.add(name)
        except re.error:
            continue  # a pattern we can't read ignores nothing: the estimate stays an estimate

    def ignored(module: str) -> bool:
        parents = _parents(module)
        return (
            any(parent in exact for parent in parents)
            or any(pattern.match(parent) for pattern in patterns for parent in parents)
            or not words.isdisjoint(module.split("."))
        )

    return ignored


def _without_wrapper(name: str) -> str:
    """The decoder's own name of a module, whatever wraps the decoder: from "model.layers" on."""
    at = _LAYER_NUMBER.search(name)
    if at is None:
        return name
    start = name.rfind("layers.", 0, at.start() + 1)
    return f"model.{name[start:]}" if start >= 0 else name


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 2, -1)]
