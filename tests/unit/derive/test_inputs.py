"""Which source is believed, and what is said where two disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exporter import catalogue as c
from exporter.derive.inputs import Model, choose
from exporter.engines.sample import NOT_REPORTED
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason

from .readouts import GEMMA2, LLAMA, by, figure, model, read, sglang, told, vllm

UNSAID = {"block_tokens": NOT_REPORTED, "max_model_len": NOT_REPORTED, "cache_dtype": None}


def sources(**values: object) -> dict[Source, Facts]:
    """``engine=`` and so on: what each says about the block size."""
    return {Source(name): Facts(block_size=value) for name, value in values.items()}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "page", "value", "source", "others"),
    [
        # Engine, setting, command line: the first that speaks, and the rest is named.
        (
            sources(engine=64, setting=16, command_line=8),
            32,
            64,
            "engine",
            {("engine", 32), ("setting", 16), ("command_line", 8)},
        ),
        (sources(setting=16, command_line=8), 32, 32, "engine", {("setting", 16), ("command_line", 8)}),
        (sources(setting=16, command_line=8), None, 16, "setting", {("command_line", 8)}),
        (sources(command_line=8), None, 8, "command_line", set()),
        # Agreement is no contradiction.
        (sources(setting=32, command_line=32), 32, 32, "engine", set()),
        ({}, None, None, None, set()),
    ],
)
def test_precedence(
    facts: dict[Source, Facts],
    page: int | None,
    value: int | None,
    source: str | None,
    others: set[tuple[str, int]],
) -> None:
    """Engine over setting over command line; of the engine's voices the info endpoint over the page."""
    sample = vllm(block_tokens=page if page else NOT_REPORTED)
    choice = choose(sample, facts, Model()).choices["block_size"]
    assert (choice.value, choice.source) == (value, source)
    assert set(choice.disagrees) == others


def test_defaults_come_last_and_are_reported_as_assumed() -> None:
    """What nobody says is what the engine does by itself; figures that hang on it say so."""
    got = read(vllm(cache_dtype=None))
    assert set(by(got, c.INPUT_ASSUMED, "input")) == {
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "kv_cache_dtype",
    }
    said = read(vllm(), facts=told(tensor_parallel_size=1, pipeline_parallel_size=1))
    assert not by(said, c.INPUT_ASSUMED, "input")
    # SGLang's page size is 1 unless told otherwise; vLLM's block size is never guessed.
    assert "block_size" in by(read(sglang(block_tokens=NOT_REPORTED)), c.INPUT_ASSUMED, "input")
    assert figure(read(vllm(block_tokens=NOT_REPORTED)), c.BYTES_PER_TOKEN) is Reason.BLOCK_SIZE


def test_a_position_limit_is_used_only_where_nothing_else_is_said() -> None:
    """config.json's 8,192 is a ceiling: the engine's 4,096 does not contradict it."""
    got = choose(vllm(), {}, model(LLAMA)).choices["max_model_len"]
    assert (got.value, got.source, got.disagrees) == (4_096, Source.ENGINE, ())
    got = choose(vllm(**UNSAID), {}, model(LLAMA)).choices["max_model_len"]
    assert (got.value, got.source) == (8_192, Source.CONFIG)
    got = choose(vllm(**UNSAID), told(max_model_len=2_048), model(LLAMA)).choices["max_model_len"]
    assert (got.value, got.source, got.disagrees) == (2_048, Source.SETTING, ())


def test_contradictions_are_published() -> None:
    """The user said 2 GPUs, the engine says 1: the engine's is used, and the readout says both."""
    facts = {Source.ENGINE: Facts(tensor_parallel_size=1), **told(tensor_parallel_size=2)}
    got = read(vllm(), facts=facts)
    assert [(x.input, x.used, x.other) for x in got.contradictions] == [
        ("tensor_parallel_size", "engine", "setting")
    ]
    assert figure(got, c.BYTES_PER_TOKEN) == 1_024
    assert figure(got, c.DEVICE_BYTES_PER_TOKEN) == 1_024


def test_names_are_no_contradiction() -> None:
    """A path here and an alias there are the same model."""
    facts = {
        Source.ENGINE: Facts(model="/models/llama", served_model_name="a", software="vllm"),
        Source.COMMAND_LINE: Facts(model="org/llama", served_model_name="b", software="vllm"),
    }
    assert not read(vllm(), facts=facts).contradictions


def test_zero_on_a_page_is_nobody_speaking() -> None:
    """A gauge that is still 0 would divide by zero: no page, no length, no capacity of 0."""
    got = read(sglang(block_tokens=0, max_model_len=0))
    assert figure(got, c.CAPACITY_BLOCKS) is Reason.BLOCK_SIZE
    assert figure(got, c.MAX_MODEL_LEN_TOKENS) is Reason.MAX_MODEL_LEN
    assert figure(got, c.MAX_SEQUENCES) is Reason.BLOCK_SIZE


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (4_096, {"1000", "4096"}),  # its own length is a tier and is not doubled
        (5_000, {"1000", "4096", "5000"}),
        (500, {"500"}),
        (200_000, {"1000", "4096", "8192", "131072", "200000"}),
    ],
)
def test_tiers_end_at_the_longest_context(longest: int, expected: set[str]) -> None:
    """A sequence longer than the engine serves does not exist; the longest one is always shown."""
    got = read(vllm(max_model_len=longest), contexts=(131_072, 8_192, 4_096, 1_000, 1_000))
    assert set(by(got, c.MAX_SEQUENCES, "context")) == expected
    assert set(by(got, c.SEQUENCE_BYTES, "context")) == expected
    assert figure(got, c.MAX_MODEL_LEN_TOKENS) == longest


def test_tiers_without_a_longest_context() -> None:
    """No config and no word of the engine: the tiers as set."""
    got = read(vllm(max_model_len=NOT_REPORTED), config=None, contexts=(8_192, 4_096))
    assert set(by(got, c.MAX_SEQUENCES, "context")) == {"4096", "8192"}
    assert figure(got, c.MAX_MODEL_LEN_TOKENS) is Reason.MAX_MODEL_LEN


def test_engine_info_names_the_sources() -> None:
    """Where each input came from is a label."""
    facts = {**told(kv_cache_dtype="fp8"), Source.COMMAND_LINE: Facts(tensor_parallel_size=2)}
    info = read(vllm(cache_dtype=None), facts=facts).info
    assert info["kv_cache_dtype"] == "fp8"
    assert info["kv_cache_dtype_source"] == "setting"
    assert info["parallel_source"] == "command_line"
    assert info["attention"] == "gqa"
    assert info["config_source"] == "path"
    assert read(vllm(), config=GEMMA2).info["attention"] == "window_mix"
    assert read(vllm(), config=None).info["attention"] == "unknown"


def test_prefix_caching_off_has_nothing_to_match() -> None:
    """Without it no prefix of any length can hit."""
    off = read(replace(vllm(), prefix_caching=False))
    assert figure(off, c.PREFIX_MATCHABLE_TOKENS) is Reason.PREFIX_CACHING_OFF
    assert figure(read(vllm()), c.PREFIX_MATCHABLE_TOKENS) == 32


def test_routes_and_objectives() -> None:
    """A target's one route names what the page leaves unnamed; objectives are the settings'."""
    from exporter.engines.sample import PrefixCounts

    prefix = PrefixCounts({"": 10, "rag": 20}, {("", "device"): 5, ("rag", "device"): 7})
    got = read(vllm(prefix=prefix), route="chat", prefix_objectives={"rag": 0.5})
    assert by(got, c.PREFIX_QUERY_TOKENS, "route") == {"chat": 10, "rag": 20}
    assert by(got, c.PREFIX_HIT_TOKENS, "route") == {"chat": 5, "rag": 7}
    assert by(got, c.PREFIX_HIT_OBJECTIVE, "route") == {"rag": 0.5}
