"""CONFIG from disk: the model's config and what its weights take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.quantized import loaded_bytes, quantization_of, weight_bytes_per_parameter
from exporter.kvmath.weights import ModelWeights, model_weights
from exporter.sources.files import UnreadableError, read_json_object
from exporter.sources.weights import StoredWeights, stored_weights

CONFIG_NAME = "config.json"
QUANTIZATION_NAME = "hf_quant_config.json"
MAX_CONFIG_BYTES = 8 * 2**20
# Bytes of one element in the safetensors format's dtypes that hold one parameter each.
_ELEMENT_BYTES: Mapping[str, int] = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1}


class WeightsSource(StrEnum):
    """Where the size of the weights comes from."""

    SETTING = "setting"
    INDEX = "index"
    HEADERS = "headers"
    ESTIMATE = "estimate"  # parameters counted from config.json
    ALL_IN_DTYPE = "parameters x --weights-dtype"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes in all GPUs of a replica together, copies not counted; ``how`` for people."""

    bytes: int
    source: WeightsSource
    estimated: bool
    how: str
    parameters: int | Unavailable
    active_parameters: int | Unavailable
    quantized: bool = False  # the checkpoint's matrices are narrower than 16 bits already


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A config.json, where it was, and the directory its tensors would be in."""

    config: Mapping[str, object]
    location: Path
    directory: Path | None


def read_checkpoint(path: Path) -> Checkpoint:
    """CONFIG: a file, or a directory with a config.json.  Raises ``ValueError``, one line with the name.

    A file of another name may lie among anything, so only beside a config.json are
    tensors looked for.  ModelOpt checkpoints keep their scheme in a file of its own.
    """
    try:
        path = path.expanduser()
        file = path / CONFIG_NAME if path.is_dir() else path
        config = read_json_object(file, MAX_CONFIG_BYTES)
        if file.name != CONFIG_NAME:
            return Checkpoint(config, file, None)
        if "quantization_config" not in config:
            config = {**config, **_modelopt(file.parent / QUANTIZATION_NAME)}
        return Checkpoint(config, file, file.parent)
    except UnreadableError as error:
        raise ValueError(str(error)) from None
    except (OSError, RuntimeError) as error:  # no rights on a parent, ~nobody
        raise ValueError(f"{path}: {type(error).__name__}") from None


def _modelopt(file: Path) -> Mapping[str, object]:
    try:
        return {
            "quantization_config": {"quant_method": "modelopt", **read_json_object(file, MAX_CONFIG_BYTES)}
        }
    except UnreadableError as error:
        if error.missing:
            return {}
        raise


def default_in_flight(config: Mapping[str, object]) -> int:
    """Tokens in flight at once where nobody says, as the recorded admission sizes assume them.

    2,048 batched tokens, two batches under asynchronous scheduling (vLLM 0.32.0
    config/vllm.py ``max_in_flight_tokens``).  Gemma 4 attends to an image in both
    directions, so its largest media item, 2,496 tokens, must fit in one batch
    (engine/arg_utils.py ``_get_min_mm_batched_tokens``).
    """
    text = config.get("text_config")
    both_ways = isinstance(text, Mapping) and text.get("use_bidirectional_attention") == "vision"
    return 2 * (2496 if both_ways and config.get("model_type") == "gemma4" else 2048)


def weights_of(checkpoint: Checkpoint, gigabytes: float | None, dtype: str | None) -> Weights | Unavailable:
    """The weights: as told, else by ``dtype``, else from the checkpoint's files, else estimated.

    Raises ``ValueError`` for a dtype nobody uses.
    """
    found = _weights(checkpoint, gigabytes, dtype)
    # A --weights-dtype is what the user makes of the checkpoint, whatever it was.
    quantized = dtype is None and bool(quantization_of(checkpoint.config))
    return replace(found, quantized=quantized) if known(found) else found


def _weights(checkpoint: Checkpoint, gigabytes: float | None, dtype: str | None) -> Weights | Unavailable:
    counted = _counted(checkpoint.config)
    active = counted.active if known(counted) else counted
    if gigabytes is not None:
        total = counted.total if known(counted) else counted
        size = round(gigabytes * 10**9)
        return Weights(size, WeightsSource.SETTING, False, "--weights-gb", total, active)
    stored = stored_weights(checkpoint.directory)
    parameters = _parameters(checkpoint, stored, counted)
    if dtype is not None:
        each = weight_bytes_per_parameter(dtype)
        if not known(each):
            raise ValueError(f"--weights-dtype: {each.detail}")
        if not known(parameters):
            return parameters
        how = f"{parameters:,} parameters x {each:g} bytes, embedding and output included"
        return Weights(round(parameters * each), WeightsSource.ALL_IN_DTYPE, True, how, parameters, active)
    if known(stored):
        return _from_files(checkpoint, stored, parameters, active)
    if not known(counted):
        return Unavailable(counted.reason, f"{stored.detail}; {counted.detail}")
    loaded = loaded_bytes(counted, checkpoint.config)
    if not known(loaded):
        return loaded
    size, stored_as = loaded
    how = f"estimate: {counted.total:,} parameters counted from the config, matrices in {stored_as}"
    return Weights(size, WeightsSource.ESTIMATE, True, how, counted.total, active)


def _counted(config: Mapping[str, object]) -> ModelWeights | Unavailable:
    """Counted from the config, draft layers left out."""
    return model_weights(config)


def _from_files(
    checkpoint: Checkpoint, stored: StoredWeights, parameters: int | Unavailable, active: int | Unavailable
) -> Weights:
    source = WeightsSource(stored.source)
    how = f"safetensors {stored.source}: {stored.bytes:,} bytes stored"
    size = stored.bytes
    if not checkpoint.config.get("quantization_config"):
        wide = stored.bytes_by_dtype.get("F32", 0)
        if not stored.bytes_by_dtype and _named_float32(checkpoint.config):
            wide = stored.bytes
        # A few float32 tensors in a 16-bit checkpoint are meant to be so; engines halve only whole models.
        if wide * 2 > stored.bytes:
            size -= wide // 2
            how += ", float32 loaded in 16 bits"
    return Weights(size, source, False, how, parameters, active)


def _parameters(
    checkpoint: Checkpoint, stored: StoredWeights | Unavailable, counted: ModelWeights | Unavailable
) -> int | Unavailable:
    """Parameters: from the tensors where each element is one, else counted from the config."""
    if known(stored) and not checkpoint.config.get("quantization_config"):
        if stored.bytes_by_dtype and stored.bytes_by_dtype.keys() <= _ELEMENT_BYTES.keys():
            return sum(size // _ELEMENT_BYTES[dtype] for dtype, size in stored.bytes_by_dtype.items())
        if not stored.bytes_by_dtype:
            return stored.bytes // (4 if _named_float32(checkpoint.config) else 2)
    return counted.total if known(counted) else counted


def _named_float32(config: Mapping[str, object]) -> bool:
    return config.get("dtype", config.get("torch_dtype")) in ("float32", "float")
