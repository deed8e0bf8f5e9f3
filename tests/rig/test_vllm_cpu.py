"""The sidecar beside a real vLLM, against what the client of that engine knows to be true.

The engine is held still while we look (its scheduler can be paused with all requests in place), so block
counts are compared as integers, without a tolerance.
"""

from __future__ import annotations

import asyncio

import pytest

from .conftest import Stand
from .load import load, prompts
from .page import Page
from .sidecar import checked
from .truth import GEMMA2, LLAMA, MODELS

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

every_model = pytest.mark.parametrize("stand", MODELS, indirect=True, ids=lambda model: model.name)
prefix_caching_models = pytest.mark.parametrize(
    "stand", [LLAMA, GEMMA2], indirect=True, ids=lambda model: model.name
)
llama = pytest.mark.parametrize("stand", [LLAMA], indirect=True, ids=lambda model: model.name)


# Requests that are held and then abandoned: they must not end before the engine is held.
_MORE_THAN_NEEDED = 1000


def _prefix_counts(page: Page) -> tuple[float, float]:
    return page.total("kvcache_prefix_query_tokens_total"), page.total("kvcache_prefix_hit_tokens_total")


@every_model
def test_the_sidecar_waits_for_its_engine(stand: Stand) -> None:
    """A native sidecar container starts minutes before its engine: "down" then, no crash and no zeros."""
    assert stand.before_engine.value("kvcache_engine_up") == 0
    assert stand.before_engine.all("kvcache_used_blocks") == []

    assert stand.sidecar.scrape().value("kvcache_engine_up") == 1


@every_model
def test_the_capacity_is_the_engines(stand: Stand) -> None:
    """Three sources must agree: the engine's log, its info metric and the bytes that its pool was given."""
    page, model = stand.sidecar.scrape_fresh(), stand.model

    assert page.value("kvcache_capacity_tokens") == stand.engine.capacity_line().kv_cache_tokens
    assert page.value("kvcache_capacity_blocks") == stand.engine.num_blocks() == model.num_blocks
    assert page.value("kvcache_capacity_bytes") == model.num_blocks * model.block_bytes
    assert model.kv_cache_bytes - model.block_bytes < page.value("kvcache_capacity_bytes")
    assert page.value("kvcache_max_model_len_tokens") == stand.engine.capacity_line().max_model_len_tokens


@every_model
def test_our_arithmetic_agrees_with_the_engine(stand: Stand) -> None:
    """The ratio is there to reveal a wrong layout; with the right one it is 1."""
    page = stand.sidecar.scrape_fresh()

    assert page.value("kvcache_arithmetic_ratio") == pytest.approx(1, abs=0.001)


@every_model
def test_check_says_that_all_is_well(stand: Stand) -> None:
    """The doctor on a real engine: nothing wrong, every byte known, and the flag that would help."""
    code, told = checked(stand.engine.url)

    assert (code, told["engine"], told["arithmetic"]["agrees"]) == (0, "vllm", True)
    assert told["model_names"] == [stand.model.name]
    assert told["model_config"]["found"]
    available = {signal["signal"] for signal in told["signals"] if signal["available"]}
    assert {"kvcache_bytes_per_token", "kvcache_capacity_bytes", "kvcache_max_sequences"} <= available
    flags = {(advice["flag"] or "").split(" ")[0] for advice in told["advice"]}
    assert "--otlp-traces-endpoint" in flags  # it was started without


@every_model
def test_used_blocks_are_those_of_the_requests_held(stand: Stand) -> None:
    """The heart of the matter: blocks in use follow from the lengths of the requests, to the integer."""
    for number, lengths in enumerate(stand.model.pictures):
        asyncio.run(_hold_and_compare(stand, seed=100 + number, lengths=lengths))


async def _hold_and_compare(stand: Stand, seed: int, lengths: tuple[int, ...]) -> None:
    model = stand.model
    async with load(stand.engine.url, stand.engine.model_name) as client:
        for prompt in prompts(seed, lengths):
            client.start(prompt, _MORE_THAN_NEEDED)
        # Two pictures of the same requests: the first shortly after the prefill, the second further on.
        for received_tokens in (2, 12):
            await client.hold(received_tokens)
            page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
            held = [request.computed_tokens for request in client.requests]
            expected = model.blocks_of_all(held)

            assert page.value("kvcache_used_blocks") == expected, held
            assert page.value("kvcache_used_bytes") == expected * model.block_bytes
            assert page.value("kvcache_usage_ratio") == pytest.approx(expected / (model.num_blocks - 1))
            assert page.value("kvcache_running_sequences") == len(held)
            assert page.value("kvcache_waiting_sequences") == 0
            if len(model.groups) == 1:
                assert page.value("kvcache_used_tokens") == expected * model.block_size
            else:
                # A block belongs to one group: blocks times their size are not tokens.
                assert page.all("kvcache_used_tokens") == []
            await client.resume()


@prefix_caching_models
def test_a_shared_prefix_counts_once(stand: Stand) -> None:
    """Two requests over the same 128 tokens hold those 4 blocks together, in every group."""
    model = stand.model

    async def scenario(seed: int) -> bool:
        prefix, first_tail, second_tail = prompts(seed, (128, 10, 20))
        async with load(stand.engine.url, stand.engine.model_name) as client:
            client.start(prefix + first_tail, _MORE_THAN_NEEDED)
            await client.hold()
            client.start(prefix + second_tail, _MORE_THAN_NEEDED)
            await client.resume()
            await client.hold()
            held = [request.computed_tokens for request in client.requests]
            if max(held) > 256:
                return False  # held too late: beyond Gemma's window the shared blocks are let go
            page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
            assert page.value("kvcache_used_blocks") == model.blocks_of_all(held) - 4 * len(model.groups)
            return True

    # On a busy machine the client may be late for the moment.
    assert any(asyncio.run(scenario(seed)) for seed in range(200, 205))


@prefix_caching_models
def test_prefix_hits_are_whole_blocks(stand: Stand) -> None:
    """The second of two equal prompts hits its whole blocks, but its last token is always computed."""
    unaligned, aligned = prompts(300, (170, 160))
    before = _prefix_counts(stand.sidecar.scrape_fresh())

    async def scenario() -> None:
        async with load(stand.engine.url, stand.engine.model_name) as client:
            for prompt in (unaligned, unaligned, aligned, aligned):
                await client.run(prompt, max_tokens=2)

    asyncio.run(scenario())
    page = stand.sidecar.scrape_fresh()
    queries, hits = _prefix_counts(page)

    assert queries - before[0] == 2 * 170 + 2 * 160
    assert hits - before[1] == 5 * 32 + 4 * 32  # 170 = 5 x 32 + 10; 160 - 1 = 4 x 32 + 31
    assert hits == stand.engine.scrape().total("vllm:prompt_tokens_cached_total")


@every_model
def test_a_matchable_prefix_is_named_only_where_prefixes_are_cached(stand: Stand) -> None:
    """0.32.0 turns prefix caching off for MLA on a CPU: no prefix can match, which is not "one block"."""
    page = stand.sidecar.scrape_fresh()

    if stand.model.caches_prefixes:
        assert page.value("kvcache_prefix_matchable_tokens") == stand.model.block_size
    else:
        assert page.all("kvcache_prefix_matchable_tokens") == []
        why = page.one("kvcache_exporter_unavailable", signal="kvcache_prefix_matchable_tokens").labels
        assert why["reason"] == "prefix_caching_off"


@every_model
def test_finished_requests_are_the_clients(stand: Stand) -> None:
    """Every request that the client saw finish is counted once."""
    before = stand.sidecar.scrape_fresh().total("kvcache_requests_total")

    async def scenario() -> None:
        async with load(stand.engine.url, stand.engine.model_name) as client:
            for prompt in prompts(400, (10, 20, 30, 40, 50, 60, 70)):
                client.start(prompt, max_tokens=3)
            await client.finish()

    asyncio.run(scenario())
    page = stand.sidecar.scrape_fresh()

    assert page.total("kvcache_requests_total") - before == 7
    assert page.total("kvcache_requests_total") == stand.engine.scrape().total("vllm:request_success_total")


@every_model
def test_as_many_sequences_fit_as_predicted(stand: Stand) -> None:
    """That many sequences grow to 512 tokens side by side: nobody waits, nobody is preempted."""
    model = stand.model
    before = stand.sidecar.scrape_fresh()
    predicted = before.value("kvcache_max_sequences", context="512")
    assert predicted == model.sequences_of_512

    async def scenario() -> bool:
        async with load(stand.engine.url, stand.engine.model_name) as client:
            # 300 + 213 - 1 = 512 tokens are computed when the last one is received.
            await client.start_together(prompts(500, [300] * int(predicted)), max_tokens=213)
            # From 481 computed tokens on, each holds the last block it will get.
            await client.hold(received_tokens=182)
            caught = not any(request.finished for request in client.requests)
            if caught:
                page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
                assert page.value("kvcache_running_sequences") == predicted
                assert page.value("kvcache_waiting_sequences") == 0
                held = [request.computed_tokens for request in client.requests]
                assert page.value("kvcache_used_blocks") == model.blocks_of_all(held)
                assert page.value("kvcache_free_sequences", context="512") == 0
            await client.resume()
            await client.finish()
            return caught

    # The moment lasts 31 tokens; on a busy machine the client may be late for it.
    assert any(asyncio.run(scenario()) for _ in range(5))
    after = stand.sidecar.scrape_fresh()

    assert after.value("kvcache_preemptions_total") == before.value("kvcache_preemptions_total")


@every_model
def test_one_sequence_more_does_not_fit(stand: Stand) -> None:
    """The other side of the prediction: with one more, the engine has to preempt."""
    before = stand.sidecar.scrape_fresh().value("kvcache_preemptions_total")
    _run_all(stand, seed=600, prompt_tokens=300, max_tokens=213, count=stand.model.sequences_of_512 + 1)
    page = stand.sidecar.scrape_fresh()

    assert page.value("kvcache_preemptions_total") > before


@llama
def test_overload_is_counted_as_the_engine_counts_it(stand: Stand) -> None:
    """40 requests of 400 tokens want 520 blocks of 299: preemptions are sure, prefixes are re-read."""
    before = stand.sidecar.scrape_fresh()
    _run_all(stand, seed=700, prompt_tokens=300, max_tokens=101, count=40)
    page, engine = stand.sidecar.scrape_fresh(), stand.engine.scrape()
    events, requests = (
        page.value(name) - before.value(name)
        for name in ("kvcache_preemptions_total", "kvcache_preempted_requests_total")
    )

    assert page.value("kvcache_preemptions_total") == engine.total("vllm:num_preemptions_total")
    assert events > 0
    # Requests, not events: each of the 40 counts once at most, and each was hit by one event at least.
    assert 0 < requests <= min(events, 40)
    assert page.total("kvcache_requests_total") - before.total("kvcache_requests_total") == 40
    queries, hits = _prefix_counts(page)
    assert queries == engine.total("vllm:prompt_tokens_total")
    assert hits == engine.total("vllm:prompt_tokens_cached_total")
    # Unlike the raw lookups, which count a preempted request's prompt once more each time it comes back.
    assert queries - _prefix_counts(before)[0] == 40 * 300
    assert page.value("kvcache_used_blocks") == 0


def _run_all(stand: Stand, seed: int, prompt_tokens: int, max_tokens: int, count: int) -> None:
    async def scenario() -> None:
        async with load(stand.engine.url, stand.engine.model_name) as client:
            await client.start_together(prompts(seed, [prompt_tokens] * count), max_tokens)
            await client.finish()

    asyncio.run(scenario())
