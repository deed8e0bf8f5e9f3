"""The sidecar beside a real SGLang, against what the client of that engine knows to be true.

The engine is held still while we look (its scheduler can be paused with all requests in place) and reports
every step, so token counts are compared as integers, without a tolerance.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import pytest

from .conftest import SglangStand
from .controls import SglangControls
from .load import Load, load, prompts
from .page import Page
from .sglang_truth import DEEPSEEK_V2, LLAMA, LLAMA_PAGES, MAX_RUNNING, MODELS, SERVING
from .sidecar import checked
from .waiting import wait_for, wait_until

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

every_model = pytest.mark.parametrize("sglang", MODELS, indirect=True, ids=lambda model: model.name)
every_llama = pytest.mark.parametrize("sglang", SERVING, indirect=True, ids=lambda model: model.name)
llama = pytest.mark.parametrize("sglang", [LLAMA], indirect=True, ids=lambda model: model.name)
paged_llama = pytest.mark.parametrize("sglang", [LLAMA_PAGES], indirect=True, ids=lambda model: model.name)
deepseek = pytest.mark.parametrize("sglang", [DEEPSEEK_V2], indirect=True, ids=lambda model: model.name)

# Requests that are held and then abandoned: they must not end before the engine is held.
_MORE_THAN_NEEDED = 1000
_PATIENCE_S = 60.0


def _prefix_counts(page: Page, **labels: str) -> tuple[float, float]:
    """(query tokens, hit tokens); 0 where there is no series yet."""
    queries, hits = (
        sum(sample.value for sample in page.all(f"kvcache_prefix_{what}_tokens_total", **labels))
        for what in ("query", "hit")
    )
    return queries, hits


@every_model
def test_the_sidecar_waits_for_its_engine(sglang: SglangStand) -> None:
    """A native sidecar container starts minutes before its engine: "down" then, no crash and no zeros."""
    assert sglang.before_engine.value("kvcache_engine_up") == 0
    assert sglang.before_engine.all("kvcache_capacity_tokens") == []

    assert sglang.sidecar.scrape().value("kvcache_engine_up") == 1


@every_model
def test_check_says_that_all_is_well(sglang: SglangStand) -> None:
    """The doctor on a real engine: nothing wrong, and what is on is not advised."""
    code, told = checked(sglang.engine.url)

    assert (code, told["engine"], told["arithmetic"]["agrees"]) == (0, "sglang", True)
    assert told["model_config"]["found"]
    assert "kvcache_bytes_per_token" in {s["signal"] for s in told["signals"] if s["available"]}
    flags = {(advice["flag"] or "").split(" ")[0] for advice in told["advice"]}
    assert "--export-metrics-to-file" not in flags
    routes = "--tokenizer-metrics-custom-labels-header"
    assert (routes in flags) is (routes not in sglang.model.flags)


@every_model
def test_before_the_first_batch_use_is_unknown(sglang: SglangStand) -> None:
    """SGLang has no usage gauges until a batch has run: that is not "nothing in use"."""
    page = sglang.sidecar.scrape_fresh()

    for name in ("kvcache_used_tokens", "kvcache_running_sequences", "kvcache_waiting_sequences"):
        assert page.all(name) == []
        why = page.one("kvcache_exporter_unavailable", signal=name).labels
        assert why["reason"] == "no_traffic"
    # An event counter is created by its first event; this release has it, so nothing has happened.
    assert page.value("kvcache_preemptions_total") == 0


@every_model
def test_the_capacity_is_the_engines(sglang: SglangStand) -> None:
    """Three sources must agree: the engine's log, its own figures and the sum done by hand."""
    page, model, engine = sglang.sidecar.scrape_fresh(), sglang.model, sglang.engine
    logged_tokens, logged_context = engine.logged_capacity()
    told_bytes = engine.scrape().value("sglang:kv_cache_memory_usage_gb") * 2**30

    assert page.value("kvcache_capacity_tokens") == logged_tokens == model.capacity_tokens
    assert page.value("kvcache_capacity_blocks") == model.capacity_tokens / model.page_tokens
    assert page.value("kvcache_capacity_bytes") == round(told_bytes) == model.pool_bytes
    assert page.value("kvcache_max_model_len_tokens") == logged_context


@every_model
def test_our_arithmetic_agrees_with_the_engine(sglang: SglangStand) -> None:
    """config.json was found without a setting, and what it says about a token gives the engine's own pool."""
    page, model = sglang.sidecar.scrape_fresh(), sglang.model
    info = page.one("kvcache_engine_info").labels

    assert page.value("kvcache_exporter_model_config_loaded") == 1
    assert info["config_source"] == "path"
    assert info["software"] == "sglang"
    assert info["version"] == "0.5.23"
    assert info["block_size"] == str(model.page_tokens)
    assert page.value("kvcache_bytes_per_token") == model.token_bytes
    assert page.value("kvcache_arithmetic_ratio") == 1
    assert page.value("kvcache_max_sequences", context="512") == model.sequences_of_512


@every_llama
def test_used_tokens_are_those_of_the_requests_held(sglang: SglangStand) -> None:
    """The heart of the matter: slots in use follow from the lengths of the requests, to the token."""
    # 16 lengths in a row, with page 64 on both sides of a page's end; a lone one; two long ones.
    for number, lengths in enumerate((range(120, 136), (100,), (700, 1001))):
        asyncio.run(_hold_and_compare(sglang, prompts(100 + number, lengths)))


async def _hold_and_compare(sglang: SglangStand, texts: Sequence[list[int]]) -> None:
    model = sglang.model
    async with _load(sglang) as client:
        for prompt in texts:
            client.start(prompt, _MORE_THAN_NEEDED)
        # Two pictures of the same requests: the first shortly after the prefill, the second further on.
        for received_tokens in (2, 12):
            await client.hold(received_tokens)
            page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
            held = [request.computed_tokens for request in client.requests]
            used = model.slots_of_all(held)
            free = (await client.scrape()).value("sglang:kv_available_tokens")

            assert page.value("kvcache_used_tokens") == used, held
            assert page.value("kvcache_used_blocks") == used / model.page_tokens
            assert page.value("kvcache_used_bytes") == used * model.token_bytes
            assert page.value("kvcache_usage_ratio") == pytest.approx(used / model.capacity_tokens)
            # Every slot is in use, cached or free.
            assert used + page.value("kvcache_cached_tokens") + free == model.capacity_tokens
            assert page.value("kvcache_running_sequences") == len(held)
            assert page.value("kvcache_waiting_sequences") == 0
            await client.resume()


@every_llama
def test_requests_beyond_the_limit_wait(sglang: SglangStand) -> None:
    """24 requests run, which is all the engine was allowed; three more wait and hold nothing."""
    texts = prompts(150, [20] * (MAX_RUNNING + 3))

    async def scenario() -> None:
        async with _load(sglang) as client:
            for prompt in texts[:MAX_RUNNING]:
                client.start(prompt, _MORE_THAN_NEEDED)
            await client.hold()
            for prompt in texts[MAX_RUNNING:]:
                client.start(prompt, _MORE_THAN_NEEDED)
            await client.resume()

            async def queued() -> bool:  # the engine has taken all three in, and reported a step since
                return (await client.scrape()).total("sglang:num_queue_reqs") == 3

            await wait_until(queued, _PATIENCE_S, "three requests in the engine's queue")
            await client.pause()
            page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
            running = client.requests[:MAX_RUNNING]

            assert page.value("kvcache_running_sequences") == MAX_RUNNING
            assert page.value("kvcache_waiting_sequences") == 3
            held = [request.computed_tokens for request in running]
            assert page.value("kvcache_used_tokens") == sglang.model.slots_of_all(held)

    asyncio.run(scenario())


@every_llama
def test_a_shared_prefix_counts_once(sglang: SglangStand) -> None:
    """Two requests over the same 130 tokens hold the whole pages of them together."""
    model = sglang.model
    prefix, first_tail, second_tail = prompts(200, (130, 10, 20))

    async def scenario() -> None:
        async with _load(sglang) as client:
            client.start(prefix + first_tail, _MORE_THAN_NEEDED)
            await client.hold()
            client.start(prefix + second_tail, _MORE_THAN_NEEDED)
            await client.resume()
            await client.hold()
            page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
            held = [request.computed_tokens for request in client.requests]

            assert page.value("kvcache_used_tokens") == model.slots_of_all(held) - model.shared(130)

    asyncio.run(scenario())


@every_llama
def test_prefix_hits_are_whole_pages(sglang: SglangStand) -> None:
    """The second of two equal prompts hits its whole pages, but its last token is always computed."""
    model = sglang.model
    unaligned, aligned = prompts(300, (170, 128))
    before = _prefix_counts(sglang.sidecar.scrape_fresh())

    async def scenario() -> None:
        async with _load(sglang) as client:
            for prompt in (unaligned, unaligned, aligned, aligned):
                await client.run(prompt, max_tokens=2)

    asyncio.run(scenario())
    queries, hits = _prefix_counts(sglang.sidecar.scrape_fresh())

    assert queries - before[0] == 2 * 170 + 2 * 128
    # Pages of 1: 169 + 127. Pages of 64: 169 = 2 x 64 + 41 and 127 = 64 + 63.
    assert hits - before[1] == model.shared(169) + model.shared(127) == {1: 296, 64: 192}[model.page_tokens]


@paged_llama
def test_prefix_hits_are_told_apart_by_route(sglang: SglangStand) -> None:
    """With custom labels switched on in the engine, each route has the hits of its own requests."""
    long, short = prompts(350, (300, 100))

    async def scenario() -> None:
        async with _load(sglang) as client:
            for route, prompt in (("chat", long), ("chat", long), ("batch", short), ("chat", long)):
                await client.run(
                    prompt, max_tokens=2, headers={"x-custom-labels": json.dumps({"route": route})}
                )

    asyncio.run(scenario())
    page = sglang.sidecar.scrape_fresh()

    # 299 = 4 x 64 + 43, found by the second and the third.
    assert _prefix_counts(page, route="chat") == (3 * 300, 2 * 256)
    assert _prefix_counts(page, route="batch") == (100, 0)


@every_llama
def test_finished_requests_are_the_clients(sglang: SglangStand) -> None:
    """Every request that the client saw finish is counted once."""
    before = sglang.sidecar.scrape_fresh().total("kvcache_requests_total")

    async def scenario() -> None:
        async with _load(sglang) as client:
            for prompt in prompts(400, (10, 20, 30, 40, 50, 60, 70)):
                client.start(prompt, max_tokens=3)
            await client.finish()

    asyncio.run(scenario())

    assert sglang.sidecar.scrape_fresh().total("kvcache_requests_total") - before == 7


@every_llama
def test_as_many_sequences_fit_as_predicted(sglang: SglangStand) -> None:
    """That many sequences grow to 512 tokens side by side: nobody waits, nobody is retracted."""
    model = sglang.model
    before = sglang.sidecar.scrape_fresh()
    predicted = before.value("kvcache_max_sequences", context="512")
    assert predicted == model.sequences_of_512

    async def scenario() -> bool:
        async with _load(sglang) as client:
            # 300 + 213 - 1 = 512 tokens are computed when the last one is received.
            await client.start_together(prompts(500, [300] * int(predicted)), max_tokens=213)
            # From 449 computed tokens on, each holds the last page it will get.
            await client.hold(received_tokens=182)
            caught = not any(request.finished for request in client.requests)
            if caught:
                page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
                assert page.value("kvcache_running_sequences") == predicted
                assert page.value("kvcache_waiting_sequences") == 0
                held = [request.computed_tokens for request in client.requests]
                used = model.slots_of_all(held)
                assert page.value("kvcache_used_tokens") == used
                free = (model.capacity_tokens - used) // 512
                assert page.value("kvcache_free_sequences", context="512") == free
            await client.resume()
            await client.finish()
            return caught

    # The moment lasts 31 tokens; on a busy machine the client may be late for it.
    assert any(asyncio.run(scenario()) for _ in range(5))
    after = sglang.sidecar.scrape_fresh()

    assert after.value("kvcache_preemptions_total") == before.value("kvcache_preemptions_total")
    assert after.value("kvcache_used_tokens") == 0


@every_llama
def test_one_sequence_more_does_not_fit(sglang: SglangStand) -> None:
    """The other side of the prediction: with one more, the engine has to retract."""
    before = sglang.sidecar.scrape_fresh().value("kvcache_preemptions_total")
    _run_all(sglang, seed=600, prompt_tokens=300, max_tokens=213, count=sglang.model.sequences_of_512 + 1)

    assert sglang.sidecar.scrape_fresh().value("kvcache_preemptions_total") > before


@llama
def test_overload_is_counted_as_the_engine_counts_it(sglang: SglangStand) -> None:
    """40 requests of 400 tokens want 16,000 slots of 3,400: retractions and evictions are sure."""
    before = sglang.sidecar.scrape_fresh()
    logged_before = len(_request_log(sglang))
    _run_all(sglang, seed=700, prompt_tokens=300, max_tokens=101, count=40)
    page, engine = sglang.sidecar.scrape_fresh(), sglang.engine

    retractions = page.value("kvcache_preemptions_total")
    assert retractions > before.value("kvcache_preemptions_total")
    assert retractions == engine.counter("sglang:num_retracted_requests_total")
    # The engine writes its log after it has answered. Requests that were abandoned are not in it, but none of
    # those was ever retracted: they held little.
    wait_for(lambda: len(_request_log(sglang)) == logged_before + 40, _PATIENCE_S, "the engine's request log")
    assert retractions == sum(_request_log(sglang))

    evicted = page.value("kvcache_evicted_tokens_total")
    assert evicted == engine.counter("sglang:evicted_tokens_total")
    # 40 x 300 tokens went in; the pool, all of it, can have kept 3,400 of them.
    assert evicted - before.value("kvcache_evicted_tokens_total") >= 40 * 300 - 3400
    assert page.total("kvcache_requests_total") - before.total("kvcache_requests_total") == 40
    assert page.value("kvcache_used_tokens") == 0


def _load(sglang: SglangStand) -> AbstractAsyncContextManager[Load]:
    return load(sglang.engine.url, sglang.engine.model_name, SglangControls())


def _request_log(sglang: SglangStand) -> list[int]:
    """How often each finished request was retracted, by the engine's own account."""
    return [
        json.loads(line)["num_retractions"]
        for path in sorted(sglang.request_log.glob("sglang-request-metrics-*.log"))
        for line in path.read_text().splitlines()
    ]


def _run_all(sglang: SglangStand, seed: int, prompt_tokens: int, max_tokens: int, count: int) -> None:
    async def scenario() -> None:
        async with _load(sglang) as client:
            await client.start_together(prompts(seed, [prompt_tokens] * count), max_tokens)
            await client.finish()

    asyncio.run(scenario())
