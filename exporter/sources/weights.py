"""How many bytes a checkpoint's tensors take, without reading a tensor.

Source: the safetensors format (8 bytes of little-endian header length, a JSON
header with byte offsets) and the index file that transformers writes beside
several shards.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.kvmath.known import Reason, Unavailable
from exporter.sources.files import (
    MalformedError,
    UnreadableError,
    parse_json_object,
    read_json_object,
    read_start,
)

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 100_000_000  # the format's own cap
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A checkpoint's tensors: their bytes as stored, and where that figure is from ("index" or "headers").

    ``bytes_by_dtype`` is in the format's spelling ("BF16", "F8_E4M3", ...), empty
    where only the index was read.
    """

    bytes: int
    source: str
    bytes_by_dtype: Mapping[str, int]


def weights_bytes(directory: Path | None) -> int | Unavailable:
    """Bytes of all tensors of the checkpoint in ``directory``, as stored.

    The index's ``metadata.total_size`` where there is one, else the sum over the
    headers.  Unavailable(MODEL_WEIGHTS): no directory, no safetensors, a shard
    missing, or a file that is not what it should be, which is named.
    """
    found = stored_weights(directory, by_dtype=False)
    return found if isinstance(found, Unavailable) else found.bytes


def stored_weights(directory: Path | None, *, by_dtype: bool = True) -> StoredWeights | Unavailable:
    """The checkpoint in ``directory``; Unavailable as in :func:`weights_bytes`.

    With ``by_dtype`` the headers are read even beside an index that has a total,
    if all its files are here; without, an index with a total is enough.
    """
    if directory is None:
        return Unavailable(Reason.MODEL_WEIGHTS, "the checkpoint's files are not on this machine")
    try:
        return _weights(directory, by_dtype)
    except UnreadableError as error:
        return Unavailable(Reason.MODEL_WEIGHTS, str(error))
    except (OSError, ValueError) as error:
        return Unavailable(Reason.MODEL_WEIGHTS, f"{directory}: {type(error).__name__}")


def _weights(directory: Path, by_dtype: bool) -> StoredWeights:
    try:
        index = read_json_object(directory / INDEX_NAME, MAX_INDEX_BYTES)
    except UnreadableError as error:
        if not error.missing:
            raise
        files = _checkpoint_files(directory)
    else:
        total = _total_size(index)
        if total is not None:
            return StoredWeights(total, "index", _dtypes_if_here(directory, index) if by_dtype else {})
        files = _indexed_files(directory, index)
    if not files:
        raise UnreadableError(directory, "no safetensors files")
    dtypes = _tensor_bytes(files)
    if sum(dtypes.values()) <= 0:
        raise MalformedError(directory, "safetensors files without tensors")
    return StoredWeights(sum(dtypes.values()), "headers", dtypes)


def _dtypes_if_here(directory: Path, index: Mapping[str, object]) -> Mapping[str, int]:
    """What the total of an index consists of; nothing where its shards are elsewhere (a hub cache)."""
    try:
        return _tensor_bytes(_indexed_files(directory, index))
    except UnreadableError:
        return {}


def _total_size(index: Mapping[str, object]) -> int | None:
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():  # some converters wrote 1.6e10
        total = int(total)
    return total if isinstance(total, int) and not isinstance(total, bool) and total > 0 else None


def _indexed_files(directory: Path, index: Mapping[str, object]) -> list[Path]:
    weight_map = index.get("weight_map")
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    # A name with a slash would lead out of the directory.
    if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise MalformedError(directory / INDEX_NAME, "neither a total_size nor a usable weight_map")
    return [directory / str(name) for name in sorted(names)]


def _checkpoint_files(directory: Path) -> list[Path]:
    files = sorted(directory.glob("*.safetensors"))
    # Mistral's releases hold the same weights a second time as consolidated*.safetensors.
    own = [f for f in files if not f.name.startswith(("consolidated", "adapter_"))]
    files = own or files
    shards = [m for m in (_SHARD.search(f.name) for f in files) if m]
    for match in shards:
        if len(shards) < int(match[2]):
            raise UnreadableError(directory, f"{len(shards)} of {int(match[2])} safetensors shards are here")
    return files


def _tensor_bytes(files: list[Path]) -> Mapping[str, int]:
    """Bytes of the tensors of ``files`` by dtype, from their headers.  Raises UnreadableError."""
    dtypes: Counter[str] = Counter()
    for file in files:
        _add_tensors(file, dtypes)
    return dtypes


def _add_tensors(file: Path, dtypes: Counter[str]) -> None:
    prefix, size_bytes = read_start(file, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size_bytes - 8):
        raise MalformedError(file, "not a safetensors file")
    content, _ = read_start(file, length, skip_bytes=8)
    total = 0
    for name, tensor in parse_json_object(file, content).items():
        if name == "__metadata__":
            continue
        match tensor:
            case {"data_offsets": [int(start), int(end)], **rest} if 0 <= start <= end:
                total += end - start
                dtypes[str(rest.get("dtype"))[:16]] += end - start
            case _:
                raise MalformedError(file, "a tensor without data_offsets")
    # Offsets are positions after the header: more bytes than the file has means a cut-off download.
    if total > size_bytes - 8 - length:
        raise MalformedError(file, "shorter than its header says")
