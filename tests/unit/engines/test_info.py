"""Info endpoints of both engines, saved and hostile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.engines.info import ENDPOINTS, parse_document, read_documents
from exporter.facts import Facts
from exporter.kvmath.known import Unavailable

RECORDINGS = Path(__file__).parents[2] / "recordings"
VLLM = RECORDINGS / "vllm-0.32.0-llama-preemptions" / "endpoints"
SGLANG = RECORDINGS / "sglang-0.5.23-llama-retractions"


def read(*paths: Path, software: str = "") -> Facts:
    return read_documents([parse_document(path.read_text()) for path in paths], software)


def test_vllm_recorded() -> None:
    """Heads and bodies as they were saved; the run's flags are in the recordings' README."""
    facts = read(VLLM / "v1_models.txt", VLLM / "version.txt", VLLM / "server_info.json")
    assert facts.software == "vllm"
    assert facts.version == "0.32.0"
    assert facts.served_model_name == "llama"
    assert facts.model == "models/llama"
    assert facts.max_model_len == 4_096
    assert facts.block_size == 32
    assert (facts.tensor_parallel_size, facts.pipeline_parallel_size, facts.data_parallel_size) == (1, 1, 1)
    assert (facts.kv_cache_dtype, facts.dtype) == ("auto", "bfloat16")
    assert facts.enable_prefix_caching is True
    assert facts.hybrid_kv_cache_manager is True
    assert facts.async_scheduling is False
    assert facts.speculative is None  # the saved document has no such key


def test_other_answers_say_nothing() -> None:
    """/health is empty and /load is about load: no facts, and no failure."""
    assert isinstance(parse_document((VLLM / "health.txt").read_text()), Unavailable)
    assert read(VLLM / "load.txt") == Facts()


def test_sglang_recorded() -> None:
    """/server_info does not tell the context length; /v1/models does."""
    facts = read(SGLANG / "server_info.json", SGLANG / "model_info.json", SGLANG / "v1_models.json")
    assert facts.software == "sglang"
    assert facts.version == "0.5.23"
    assert facts.model == "/models/model-llama"
    assert facts.served_model_name == "tiny-llama"
    assert facts.max_model_len == 8_192
    assert facts.max_total_num_tokens == 3_072
    assert facts.block_size == 1
    assert (facts.tensor_parallel_size, facts.pipeline_parallel_size, facts.data_parallel_size) == (1, 1, 1)
    assert facts.enable_prefix_caching is True
    assert facts.speculative is False


def test_sglang_root_is_no_path() -> None:
    """SGLang's /v1/models has the served name as root: taken for a path it could find another model."""
    assert read(SGLANG / "v1_models.json").model is None


@pytest.mark.parametrize(
    ("name", "tensor"), [("llama-tp2", 2), ("llama-dp2", 1), ("llama-page64", 1), ("mla-bf16", 1)]
)
def test_sglang_boots(name: str, tensor: int) -> None:
    """GPUs that one replica's attention is split over."""
    facts = read(RECORDINGS / "sglang-0.5.23-boot" / name / "server_info.json")
    assert facts.tensor_parallel_size == tensor
    assert facts.data_parallel_size == (2 if name == "llama-dp2" else 1)
    assert facts.block_size == (64 if name == "llama-page64" else 1)


def server_info(**more: object) -> Facts:
    return read_documents([{"model_path": "/m", "tp_size": 8, "dp_size": 1, **more}])


def test_attention_data_parallelism_shares_the_tensor_ranks() -> None:
    """tp 8 with dp 4 and dp attention: 2 GPUs to each rank's attention; without it 8 each."""
    assert server_info(dp_size=4, enable_dp_attention=True).tensor_parallel_size == 2
    assert server_info(dp_size=4, enable_dp_attention=False).tensor_parallel_size == 8
    assert server_info(dp_size=8, enable_dp_attention=True).tensor_parallel_size == 1


def models(*entries: object) -> Facts:
    return read_documents([{"object": "list", "data": list(entries)}], "vllm")


BASE = {"id": "base", "root": "org/base", "parent": None, "owned_by": "vllm", "max_model_len": 4096}
LORA = {"id": "lora", "root": "/adapters/lora", "parent": "base", "owned_by": "vllm", "max_model_len": None}


def test_adapters_are_not_the_model() -> None:
    """LoRA adapters stand in the same list, with a parent, in any order."""
    for entries in ((BASE, LORA), (LORA, BASE)):
        facts = models(*entries)
        assert (facts.served_model_name, facts.model, facts.max_model_len) == ("base", "org/base", 4_096)
    assert models(LORA) == Facts()
    assert models() == Facts()


def test_a_foreign_owner_names_no_software() -> None:
    """A gateway's list: its model is read, the software stays open."""
    facts = models({**BASE, "owned_by": "openai"})
    assert (facts.software, facts.served_model_name) == (None, "base")


def test_speculative_and_hybrid_flags() -> None:
    """A config that is there means on, null means off, and a missing key means unknown."""
    config: dict[str, object] = {"model_config": {"model": "m"}}
    assert read_documents([{"vllm_config": config}]).speculative is None
    assert read_documents([{"vllm_config": {**config, "speculative_config": None}}]).speculative is False
    assert read_documents([{"vllm_config": {**config, "speculative_config": {"k": 3}}}]).speculative is True
    off = {**config, "scheduler_config": {"disable_hybrid_kv_cache_manager": True}}
    assert read_documents([{"vllm_config": off}]).hybrid_kv_cache_manager is False
    drafts = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
    mtp = read_documents([{"vllm_config": {**config, "speculative_config": drafts}}])
    assert (mtp.speculative, mtp.speculative_method, mtp.num_speculative_tokens) == (True, "mtp", 2)
    assert server_info(speculative_algorithm="EAGLE").speculative is True
    # The model itself named as its own draft: the layers it brings along.
    own = server_info(speculative_algorithm="EAGLE", speculative_draft_model_path="/m")
    other = server_info(speculative_algorithm="EAGLE", speculative_draft_model_path="/d")
    assert (own.speculative_method, other.speculative_method) == ("mtp", "eagle")
    assert server_info(speculative_algorithm=None).speculative is False
    assert server_info().speculative is None
    assert server_info(disable_radix_cache=True).enable_prefix_caching is False


HOSTILE: list[object] = [True, False, -1, 0, 2.5, 10**15, 10**40, "8", [], {}, None, [8], {"a": 8}]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: str(v)[:20])
def test_wrong_types_are_no_counts(value: object) -> None:
    """A bool is an int to Python; text, fractions, zero and endless numbers are no counts either."""
    facts = server_info(tp_size=value, page_size=value, max_total_num_tokens=value, context_length=value)
    assert facts.tensor_parallel_size is None
    assert facts.block_size is None
    assert facts.max_total_num_tokens is None
    assert facts.max_model_len is None
    assert models({**BASE, "max_model_len": value}).max_model_len is None
    cache = {"cache_config": {"block_size": value}, "parallel_config": {"tensor_parallel_size": value}}
    told = read_documents([{"vllm_config": cache}])
    assert (told.block_size, told.tensor_parallel_size) == (None, None)


@pytest.mark.parametrize("value", [True, 7, {}, [7], "", "a\nb", "x" * 600, "\x00"], ids=repr)
def test_wrong_types_are_no_text(value: object) -> None:
    """What ends up in labels and file names is short printable text."""
    assert server_info(served_model_name=value).served_model_name is None
    assert server_info(kv_cache_dtype=value).kv_cache_dtype is None
    assert read_documents([{"version": value}]).version is None


@pytest.mark.parametrize("value", [1, 0, "true", None, [], 1.0], ids=repr)
def test_wrong_types_are_no_flags(value: object) -> None:
    """1 is not true, and "false" would be."""
    assert server_info(disable_radix_cache=value).enable_prefix_caching is None
    config = {"cache_config": {"enable_prefix_caching": value}}
    assert read_documents([{"vllm_config": config}]).enable_prefix_caching is None


def test_the_first_document_wins() -> None:
    """An earlier endpoint is the more trusted one; a later one fills its gaps."""
    facts = read_documents([{"version": "1.2.3"}, {"version": "4.5.6"}, {"data": [BASE]}])
    assert facts.version == "1.2.3"
    assert facts.max_model_len == 4_096


@pytest.mark.parametrize(
    "text", ["", "<html>", "{", "[" * 100_000, "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n\r\n"]
)
def test_no_json(text: str) -> None:
    """Error pages and nesting bombs are an absence, no exception."""
    assert isinstance(parse_document(text), Unavailable)


def test_saved_responses_with_either_line_end() -> None:
    """curl -i keeps \\r\\n, an editor may not."""
    for end in ("\r\n", "\n"):
        text = f'HTTP/1.1 200 OK{end}content-type: application/json{end}{end}{{"version": "0.32.0"}}'
        assert read_documents([parse_document(text)]).version == "0.32.0"


def test_sglang_health_is_never_asked() -> None:
    """On an idle SGLang /health runs a prefill and moves its counters (0.5.23)."""
    asked = {path for groups in ENDPOINTS.values() for group in groups for path in group}
    assert not any("health" in path for path in asked)


KEYS = (
    *("model_path", "tp_size", "dp_size", "data", "version", "vllm_config", "model_config"),
    *("cache_config", "parallel_config", "id", "root", "parent", "enable_dp_attention", "owned_by"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(JSON)
def test_any_json(document: object) -> None:
    """No document raises, and no count below 1 comes out."""
    facts = read_documents([json.loads(json.dumps(document)), document])
    for name in ("tensor_parallel_size", "data_parallel_size", "block_size", "max_model_len"):
        value = getattr(facts, name)
        assert value is None or (type(value) is int and value > 0)


def test_how_many_states_a_sequence_records_in() -> None:
    """Two while batches overlap, one where they don't or the second is made when needed (SGLang 0.5.23); a
    name nobody has resolved, or another release's field, tells nothing."""
    assert read(RECORDINGS / "sglang-0.5.23-gdn" / "server_info.json").tracking_states == 0

    def told(strategy: object, overlap_off: object = False) -> int | None:
        return server_info(
            mamba_radix_cache_strategy=strategy, disable_overlap_schedule=overlap_off
        ).tracking_states

    assert (told("extra_buffer"), told("extra_buffer", True), told("extra_buffer", None)) == (2, 1, None)
    assert (told("extra_buffer_lazy"), told("no_buffer"), told("auto"), told(3)) == (1, 0, None, None)
