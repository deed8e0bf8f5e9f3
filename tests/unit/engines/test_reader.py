"""Which rank a sample belongs to."""

from __future__ import annotations

from exporter.engines.sample import EngineSample, PrefixCounts
from exporter.kvmath.known import Reason, Unavailable

from .pages import config_info, line, sample, samples


def by_engine(found: tuple[EngineSample, ...]) -> dict[str, EngineSample]:
    ranks = {s.engine: s for s in found if not s.whole_server}
    assert len(ranks) == sum(not s.whole_server for s in found)
    return ranks


def test_labels_that_say_less_belong_to_the_one_rank() -> None:
    """cache_config_info has an engine and no model name; an old gauge has a model and no engine."""
    got = sample(
        config_info(engine="0"),
        line("vllm:kv_cache_usage_perc", 0.5, model_name="m"),
        line("vllm:num_requests_running", 3, model_name="m", engine="0"),
    )
    assert (got.model_name, got.engine) == ("m", "0")
    assert (got.num_blocks, got.usage_ratio, got.running_sequences) == (101, 0.5, 3)


def test_model_and_engine_never_named_together() -> None:
    """{model} here and {engine} there still describe one rank."""
    got = sample(config_info(engine="0"), line("vllm:kv_cache_usage_perc", 0.5, model_name="m"))
    assert (got.model_name, got.engine, got.num_blocks, got.usage_ratio) == ("m", "0", 101, 0.5)


def test_no_labels_at_all() -> None:
    """A page without any label is one rank without a name."""
    got = sample(line("vllm:kv_cache_usage_perc", 0.5), line("vllm:num_requests_running", 2))
    assert (got.model_name, got.engine, got.replica) == ("", "", "")
    assert (got.usage_ratio, got.running_sequences) == (0.5, 2)


def test_two_engines_keep_their_own() -> None:
    """Data parallelism: nothing of one rank reaches the other."""
    ranks = by_engine(
        samples(
            *(
                line("vllm:kv_cache_usage_perc", u, model_name="m", engine=e)
                for e, u in (("0", 0.1), ("1", 0.2))
            ),
            *(
                line("vllm:num_requests_running", n, model_name="m", engine=e)
                for e, n in (("0", 3), ("1", 5))
            ),
            config_info(engine="0"),
            config_info(engine="1"),
        )
    )
    assert {e: (s.model_name, s.usage_ratio, s.running_sequences) for e, s in ranks.items()} == {
        "0": ("m", 0.1, 3),
        "1": ("m", 0.2, 5),
    }


def test_a_sample_that_could_be_any_ranks_is_nobodys() -> None:
    """One value without an engine label on a page of two engines: giving it to both would double it."""
    ranks = by_engine(
        samples(
            *(line("vllm:kv_cache_usage_perc", 0.1, model_name="m", engine=e) for e in ("0", "1")),
            line("vllm:num_preemptions_total", 9, model_name="m"),
        )
    )
    assert set(ranks) == {"0", "1"}
    for rank in ranks.values():
        assert isinstance(rank.preemptions, Unavailable)
        assert rank.preemptions.reason is Reason.NOT_REPORTED


def test_ray_replicas_stay_apart() -> None:
    """Two replicas on one Ray page, of the same model and engine number, told apart by ReplicaId alone."""
    found = samples(
        *(
            line(f"ray_vllm_{name}", n, model_name="m", engine="0", ReplicaId=r, WorkerId=f"w{r}")
            for name in ("num_requests_running",)
            for r, n in (("r1", 3), ("r2", 5))
        ),
        line("ray_vllm_kv_cache_usage_perc", 0.1, model_name="m", engine="0", ReplicaId="r1", WorkerId="wr1"),
        line("ray_vllm_kv_cache_usage_perc", 0.2, model_name="m", engine="0", ReplicaId="r2", WorkerId="wr2"),
    )
    assert [(s.replica, s.running_sequences, s.usage_ratio) for s in found] == [
        ("r1", 3, 0.1),
        ("r2", 5, 0.2),
    ]


def test_two_models_on_one_page() -> None:
    """A page merged from two servers: two ranks, each with its own."""
    found = samples(
        line("vllm:kv_cache_usage_perc", 0.1, model_name="a", engine="0"),
        line("vllm:kv_cache_usage_perc", 0.2, model_name="b", engine="0"),
    )
    assert [(s.model_name, s.usage_ratio) for s in found] == [("a", 0.1), ("b", 0.2)]


def test_one_rank_with_two_values_has_none() -> None:
    """The same family twice for one rank (two processes behind one port): neither is taken."""
    got = sample(
        line("vllm:kv_cache_usage_perc", 0.1, model_name="m", pid="1"),
        line("vllm:kv_cache_usage_perc", 0.2, model_name="m", pid="2"),
    )
    assert isinstance(got.usage_ratio, Unavailable)
    assert got.usage_ratio.reason is Reason.CONTRADICTION


def test_impossible_figures_are_withheld() -> None:
    """A ratio above 1 and half a sequence are no readings."""
    got = sample(
        line("vllm:kv_cache_usage_perc", 53.0, model_name="m"),
        line("vllm:num_requests_running", 2.5, model_name="m"),
    )
    assert [v.reason for v in (got.usage_ratio, got.running_sequences) if isinstance(v, Unavailable)] == [
        Reason.OUT_OF_RANGE,
        Reason.OUT_OF_RANGE,
    ]


def test_unknown_outcomes_are_one() -> None:
    """Outcomes come from the engine's page: new words must not become new label values."""
    got = sample(
        line("vllm:kv_cache_usage_perc", 0.1, model_name="m"),
        *(
            line("vllm:request_success_total", n, model_name="m", finished_reason=why)
            for why, n in {"stop": 2, "new_word": 3, "another": 5}.items()
        ),
    )
    assert got.requests == {"stop": 2, "other": 8}


def sglang_ranks(*more: str) -> tuple[EngineSample, ...]:
    rank = {"model_name": "m", "tp_rank": "0"}
    return samples(
        *(line("sglang:max_total_num_tokens", 100, dp_rank=r, **rank) for r in ("0", "1")),
        *(line("sglang:full_token_usage", u, dp_rank=r, **rank) for r, u in (("0", 0.1), ("1", 0.2))),
        *more,
    )


def test_shared_counters_are_an_entry_of_their_own() -> None:
    """SGLang's tokenizer counts for all data-parallel ranks: once, under no rank."""
    found = sglang_ranks(
        line("sglang:num_requests_total", 8, model_name="m", is_streaming="true"),
        line("sglang:num_requests_total", 3, model_name="m", is_streaming="false"),
        line("sglang:prompt_tokens_total", 500, model_name="m"),
        line("sglang:cached_tokens_total", 200, model_name="m", cache_source="device"),
    )
    assert [(s.engine, s.whole_server) for s in found] == [("0", False), ("1", False), ("", True)]
    shared = found[2]
    assert shared.requests == {"finished": 11}
    assert shared.prefix == PrefixCounts({"": 500}, {("", "device"): 200})
    for rank in found[:2]:
        assert isinstance(rank.requests, Unavailable)
        assert isinstance(rank.prefix, Unavailable)
    assert [s.usage_ratio for s in found[:2]] == [0.1, 0.2]


def test_prefill_counters_are_per_rank_and_not_counted_again() -> None:
    """From 0.5.18 prefill counts per rank; the shared entry then keeps quiet about prefixes."""
    rank = {"model_name": "m", "tp_rank": "0"}
    found = sglang_ranks(
        *(
            line("sglang:prefill_effective_tokens_total", n, mode=mode, dp_rank=r, **rank)
            for r in ("0", "1")
            for mode, n in (("input", 70), ("device_hit", 30))
        ),
        line("sglang:prompt_tokens_total", 500, model_name="m"),
    )
    for one in found[:2]:
        assert one.prefix == PrefixCounts({"": 100}, {("", "device"): 30})
    assert isinstance(found[2].prefix, Unavailable)


def test_tensor_ranks_are_one() -> None:
    """Each tensor rank repeats the constants; the lowest speaks, and their number is kept."""
    got = sample(
        *(
            line("sglang:max_total_num_tokens", 100, model_name="m", tp_rank=str(r), pp_rank=str(p))
            for r in range(10)
            for p in range(2)
        ),
        line("sglang:full_token_usage", 0.5, model_name="m", tp_rank="0", pp_rank="0"),
    )
    assert (got.tensor_ranks, got.pipeline_ranks, got.capacity_tokens, got.usage_ratio) == (10, 2, 100, 0.5)


def test_radix_families_know_no_model() -> None:
    """evicted_tokens has dp_rank "0" and no model name, where the scheduler has a model and no dp_rank."""
    got = sample(
        line("sglang:full_token_usage", 0.5, model_name="m", tp_rank="0"),
        line("sglang:evicted_tokens_total", 7, cache_type="R", dp_rank="0", tp_rank="0", pp_rank="0"),
    )
    assert (got.model_name, got.engine, got.evicted_tokens) == ("m", "", 7)


def test_routes_are_bounded() -> None:
    """Routes are whatever clients send: 50 are kept, in the page's order, the rest is one."""
    many = range(80)
    got = sample(
        line("sglang:full_token_usage", 0.5, model_name="m"),
        *(line("sglang:prompt_tokens_total", 10, model_name="m", route=f"r{n}") for n in many),
        *(
            line("sglang:cached_tokens_total", 1, model_name="m", route=f"r{n}", cache_source="device")
            for n in (*many, 1000)
        ),
    ).prefix
    assert isinstance(got, PrefixCounts)
    assert set(got.query_tokens) == {*(f"r{n}" for n in range(50)), "other"}
    assert got.query_tokens["r0"] == 10
    assert got.query_tokens["other"] == 30 * 10
    # Nothing gets lost: 30 routes past the limit and one that has no prompts.
    assert got.hit_tokens["other", "device"] == 31


def test_usage_of_the_fullest_pool_is_not_kv_usage() -> None:
    """0.5.5 to 0.5.9: token_usage is the fullest pool's; with a state pool beside it says nothing."""
    plain = sample(
        line("sglang:token_usage", 0.7, model_name="m"), line("sglang:mamba_usage", 0, model_name="m")
    )
    assert plain.usage_ratio == 0.7
    hybrid = sample(
        line("sglang:token_usage", 0.7, model_name="m"),
        line("sglang:mamba_usage", 0.7, model_name="m"),
        line("sglang:num_used_tokens", 70, model_name="m"),
    )
    assert isinstance(hybrid.usage_ratio, Unavailable)
    assert isinstance(hybrid.used_tokens, Unavailable)


def test_more_used_than_there_is() -> None:
    """Gauges of two moments: 120 tokens of 100 are no reading."""
    got = sample(
        line("sglang:kv_used_tokens", 120, model_name="m"),
        line("sglang:max_total_num_tokens", 100, model_name="m"),
        line("sglang:num_running_reqs", 1, model_name="m"),
    )
    assert isinstance(got.used_tokens, Unavailable)
    assert got.used_tokens.reason is Reason.OUT_OF_RANGE


def test_used_from_the_other_two() -> None:
    """Capacity less available less evictable, where the used gauge itself is missing: 100 - 30 - 50."""
    got = sample(
        line("sglang:kv_available_tokens", 30, model_name="m"),
        line("sglang:kv_evictable_tokens", 50, model_name="m"),
        line("sglang:max_total_num_tokens", 100, model_name="m"),
    )
    assert (got.used_tokens, got.usage_ratio) == (20, 0.2)
