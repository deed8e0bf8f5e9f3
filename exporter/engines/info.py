"""Info endpoints of both engines, as :class:`~exporter.facts.Facts`.

A document is recognised by its content, so that saved answers work whatever
the file is called.  Only the fields named here are read; the rest (arguments,
keys, paths) is not kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from exporter.engines.switches import in_sglang_server_info
from exporter.facts import Facts
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.speculation import known_method

# Asked in this order until one of a group answers; never SGLang's /health, which
# runs a prefill when the engine is idle (0.5.23).
ENDPOINTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (("/v1/models",), ("/version",), ("/server_info?config_format=json",)),
    "sglang": (("/server_info", "/get_server_info"), ("/model_info", "/get_model_info"), ("/v1/models",)),
}


def parse_document(text: str) -> object | Unavailable:
    """JSON, or a saved HTTP response (head, blank line, JSON)."""
    if text.startswith("HTTP/"):
        _, _, text = text.replace("\r\n", "\n").partition("\n\n")
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        return Unavailable(Reason.NOT_REPORTED, "not a JSON document")
    return document


def read_documents(documents: Iterable[object], software: str = "") -> Facts:
    """Everything the documents say; an earlier one wins over a later one."""
    facts = Facts()
    for document in documents:
        if isinstance(document, dict):
            facts = facts.filled_from(_read(document, software))
    return facts


def _read(doc: Mapping[str, object], software: str) -> Facts:
    if isinstance(doc.get("vllm_config"), dict):
        return _vllm_server_info(_dict(doc["vllm_config"]))
    if "tp_size" in doc and "model_path" in doc:
        return _sglang_server_info(doc)
    if "model_path" in doc:
        return Facts(
            software="sglang",
            model=_text(doc, "model_path"),
            served_model_name=_text(doc, "served_model_name"),
        )
    if isinstance(doc.get("data"), list):
        return _models(doc, software)
    if set(doc) == {"version"}:
        return Facts(version=_text(doc, "version"))
    return Facts()


def _models(doc: Mapping[str, object], software: str) -> Facts:
    entries = [_dict(entry) for entry in doc["data"] if isinstance(entry, dict)]  # type: ignore[attr-defined]
    # LoRA adapters are listed too, with the base model as parent (vLLM 0.6 on).
    base = [entry for entry in entries if entry.get("parent") is None]
    if not base:
        return Facts()
    first = base[0]
    owner = _text(first, "owned_by") or software
    return Facts(
        software=owner if owner in ENDPOINTS else None,
        # SGLang's root is the served name, not where the model lies (0.5.23).
        model=_text(first, "root") if owner != "sglang" else None,
        served_model_name=_text(first, "id"),
        max_model_len=_count(first, "max_model_len"),
    )


def _vllm_server_info(config: Mapping[str, object]) -> Facts:
    model, cache = _dict(config.get("model_config")), _dict(config.get("cache_config"))
    parallel, scheduler = _dict(config.get("parallel_config")), _dict(config.get("scheduler_config"))
    drafts = _dict(config.get("speculative_config"))
    disabled = _flag(scheduler, "disable_hybrid_kv_cache_manager")
    return Facts(
        software="vllm",
        model=_text(model, "model"),
        served_model_name=_text(model, "served_model_name"),
        tensor_parallel_size=_count(parallel, "tensor_parallel_size"),
        pipeline_parallel_size=_count(parallel, "pipeline_parallel_size"),
        data_parallel_size=_count(parallel, "data_parallel_size"),
        decode_context_parallel_size=_count(parallel, "decode_context_parallel_size"),
        block_size=_count(cache, "block_size"),
        max_model_len=_count(model, "max_model_len"),
        max_num_batched_tokens=_count(scheduler, "max_num_batched_tokens"),
        kv_cache_dtype=_text(cache, "cache_dtype"),
        dtype=(_text(model, "dtype") or "").removeprefix("torch.") or None,
        state_dtype=_text(cache, "mamba_ssm_cache_dtype"),
        enable_prefix_caching=_flag(cache, "enable_prefix_caching"),
        hybrid_kv_cache_manager=None if disabled is None else not disabled,
        async_scheduling=_flag(scheduler, "async_scheduling"),
        speculative=config["speculative_config"] is not None if "speculative_config" in config else None,
        speculative_method=known_method(_text(drafts, "method")),
        num_speculative_tokens=_count(drafts, "num_speculative_tokens"),
    )


def _sglang_server_info(doc: Mapping[str, object]) -> Facts:
    radix_off = _flag(doc, "disable_radix_cache")
    tensor, data = _count(doc, "tp_size"), _count(doc, "dp_size")
    if tensor and data and _flag(doc, "enable_dp_attention"):
        # Then the ranks of dp_size share tp_size GPUs, and each one's attention has this many.
        tensor = max(1, tensor // data)
    return Facts(
        software="sglang",
        version=_text(doc, "version"),
        model=_text(doc, "model_path"),
        served_model_name=_text(doc, "served_model_name"),
        tensor_parallel_size=tensor,
        pipeline_parallel_size=_count(doc, "pp_size"),
        data_parallel_size=data,
        decode_context_parallel_size=_count(doc, "dcp_size"),
        block_size=_count(doc, "page_size"),
        max_model_len=_count(doc, "context_length"),
        max_total_num_tokens=_count(doc, "max_total_num_tokens"),
        kv_cache_dtype=_text(doc, "kv_cache_dtype"),
        dtype=_text(doc, "dtype"),
        state_dtype=_text(doc, "mamba_ssm_dtype"),
        tracking_states=_tracking_states(doc),
        enable_prefix_caching=None if radix_off is None else not radix_off,
        speculative=doc["speculative_algorithm"] is not None if "speculative_algorithm" in doc else None,
        speculative_method=_sglang_method(doc),
        num_speculative_tokens=_count(doc, "speculative_num_draft_tokens"),
        options=in_sglang_server_info(doc),
    )


def _sglang_method(doc: Mapping[str, object]) -> str | None:
    """The algorithm; EAGLE whose draft is the model itself drafts with the model's own layers
    (0.5.23 ``arg_groups/speculative_hook.py``, which also turns NEXTN into EAGLE)."""
    method = known_method(_text(doc, "speculative_algorithm"))
    own = doc.get("speculative_draft_model_path") in (None, doc.get("model_path"))
    return "mtp" if method == "eagle" and own else method


def _tracking_states(doc: Mapping[str, object]) -> int | None:
    """States recorded while a sequence decodes (0.5.23 ``mem_cache/allocation_sizing.py``): two, or one where
    nothing overlaps or the second is made when needed.  None for a name that the release has not resolved."""
    overlap_off = _flag(doc, "disable_overlap_schedule")
    match doc.get("mamba_radix_cache_strategy"):
        case "no_buffer":
            return 0
        case "extra_buffer" if overlap_off is not None:
            return 1 if overlap_off else 2
        case "extra_buffer_lazy":
            return 1
        case _:
            return None


def _dict(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(doc: Mapping[str, object], key: str) -> str | None:
    value = doc.get(key)
    if isinstance(value, list):  # vLLM's served_model_name may be a list
        value = value[0] if value else None
    # No control characters, and no lone surrogates, which JSON can hold and UTF-8 can't.
    if not isinstance(value, str) or not re.fullmatch(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,512}", value):
        return None
    return value


def _count(doc: Mapping[str, object], key: str) -> int | None:
    value = doc.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < 10**15 else None


def _flag(doc: Mapping[str, object], key: str) -> bool | None:
    value = doc.get(key)
    return value if isinstance(value, bool) else None
