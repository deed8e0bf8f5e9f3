"""Whatever a page says: no figure is NaN, infinite or negative, and none is both there and missing."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.catalogue import Metric
from exporter.derive.derive import derive
from exporter.derive.inputs import Model
from exporter.derive.readout import Notebook
from exporter.engines import detect
from exporter.engines.sample import EngineSample, PrefixCounts
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason, Unavailable

from .readouts import GEMMA2, GPT_OSS, LLAMA, model

CONFIGS = (None, LLAMA, GEMMA2, GPT_OSS)
MISSING = st.just(Unavailable(Reason.NOT_REPORTED))


@cache
def known_model(path: str | None) -> Model:
    return model(path) if path else Model()


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | MISSING


COUNTS = st.integers(0, 10**18) | st.integers(0, 5_000)
POSITIVE = st.integers(1, 10**18) | st.integers(1, 5_000)
TOTALS = st.floats(0, allow_nan=False, allow_infinity=False)
RATIOS = st.floats(0, 1)
FACTS = st.builds(
    Facts,
    tensor_parallel_size=st.none() | st.integers(1, 16),
    pipeline_parallel_size=st.none() | st.integers(1, 4),
    block_size=st.none() | st.integers(1, 4_096),
    max_model_len=st.none() | POSITIVE,
    max_total_num_tokens=st.none() | POSITIVE,
    max_num_batched_tokens=st.none() | POSITIVE,
    kv_cache_dtype=st.none() | st.sampled_from(["auto", "fp8", "bfloat16", "nonsense"]),
    version=st.none() | st.sampled_from(["0.9.2", "0.32.0", "x"]),
    speculative=st.none() | st.booleans(),
    async_scheduling=st.none() | st.booleans(),
    hybrid_kv_cache_manager=st.none() | st.booleans(),
)


@st.composite
def engine_samples(draw: st.DrawFn) -> EngineSample:
    vllm = draw(st.booleans())
    count = POSITIVE if vllm else COUNTS
    tokens = draw(st.dictionaries(st.sampled_from(["", "a", "b"]), TOTALS, max_size=3))
    return EngineSample(
        software="vllm" if vllm else "sglang",
        usage_ratio=draw(maybe(RATIOS)),
        num_blocks=draw(maybe(count)),
        null_blocks=draw(st.integers(0, 1)) if vllm else 0,
        block_tokens=draw(maybe(count)),
        capacity_tokens=draw(maybe(count)),
        used_tokens=draw(maybe(COUNTS)),
        cached_tokens=draw(maybe(COUNTS)),
        window_capacity_tokens=draw(maybe(COUNTS)),
        max_concurrency=draw(maybe(st.floats(1e-300, 1e12))),
        device_pool_bytes=draw(maybe(count)),
        max_model_len=draw(maybe(COUNTS)),
        cache_dtype=draw(st.none() | st.sampled_from(["auto", "fp8", "nonsense"])),
        speculative=draw(st.none() | st.booleans()),
        tensor_ranks=draw(st.none() | st.integers(2, 16)),
        several_pools=draw(st.none() | st.booleans()),
        attention_free=draw(st.booleans()),
        running_sequences=draw(maybe(COUNTS)),
        waiting_sequences=draw(maybe(COUNTS)),
        preemptions=draw(maybe(TOTALS)),
        preempted_requests=draw(maybe(TOTALS)),
        preempted_requests_exact=draw(st.booleans()),
        requests=draw(maybe(st.dictionaries(st.sampled_from(["stop", "abort"]), TOTALS, max_size=2))),
        evicted_tokens=draw(maybe(TOTALS)),
        prefix=draw(maybe(st.just(PrefixCounts(tokens, {(r, "device"): n for r, n in tokens.items()})))),
    )


@settings(max_examples=300, deadline=None)
@given(
    engine_samples(),
    st.dictionaries(st.sampled_from([Source.ENGINE, Source.SETTING, Source.COMMAND_LINE]), FACTS, max_size=3),
    st.sampled_from(CONFIGS),
    st.lists(st.integers(1, 10**7), max_size=4),
)
def test_figures_are_figures(
    sample: EngineSample, facts: dict[Source, Facts], config: str | None, contexts: list[int]
) -> None:
    """Finite, not negative, each series once, and nothing is present and missing at once."""
    got = derive(sample, facts, known_model(config), contexts)
    series = [(f.metric, frozenset(f.labels.items())) for f in got.figures]
    assert len(set(series)) == len(series)
    for figure in got.figures:
        assert math.isfinite(figure.value), figure
        assert figure.value >= 0, figure
    present: set[Metric] = {f.metric for f in got.figures}
    assert not present & set(got.missing)


WILD = st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e18, 1e300, 1.7e308])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *("vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_preemptions_total"),
                    *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total"),
                    *("sglang:max_total_num_tokens", "sglang:page_size", "sglang:context_len"),
                    *(
                        "sglang:kv_cache_memory_usage_gb",
                        "sglang:kv_used_tokens",
                        "sglang:num_requests_total",
                    ),
                    *(
                        "sglang:kv_available_tokens",
                        "sglang:kv_evictable_tokens",
                        "sglang:prompt_tokens_total",
                    ),
                    *("sglang:num_running_reqs", "sglang:prefill_effective_tokens_total"),
                ]
            ),
            st.sampled_from(['model_name="m"', 'model_name="m",route="a"', 'model_name="m",mode="x_hit"']),
            WILD,
        ),
        max_size=14,
    ),
    st.sampled_from(["1", "16", "999999999999999999", "None"]),
    st.sampled_from(CONFIGS),
)
def test_wild_pages(lines: list[tuple[str, str, float]], label: str, config: str | None) -> None:
    """The same from the page on: absurd gauges, counters that overflow when added up."""
    text = "\n".join(f"{name}{{{labels}}} {value}" for name, labels, value in lines)
    text += f'\nvllm:cache_config_info{{block_size="{label}",num_gpu_blocks="{label}"}} 1\n'
    for sample in detect.samples(detect.read(text), "0.32.0"):
        for figure in derive(sample, {}, known_model(config), (4_096,)).figures:
            assert math.isfinite(figure.value), figure
            assert figure.value >= 0, figure


def test_a_notebook_takes_no_impossible_figure() -> None:
    """The last gate before the exposition."""
    from exporter import catalogue as c

    for value in (-1.0, math.inf, math.nan, 10**400):
        out = Notebook()
        out.put(c.USED_BYTES, value)
        assert not out.figures
        assert out.missing[c.USED_BYTES].reason is Reason.OUT_OF_RANGE
