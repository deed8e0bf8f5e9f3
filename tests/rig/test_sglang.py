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

from exporter import catalogue as c

from . import claims, load_figures, sglang_figures
from .controls import SglangControls
from .load import Load, load, prompts
from .page import Page
from .scenes import Held, Overload, trimmed
from .sglang_truth import LLAMA, LLAMA_PAGES, MAX_RUNNING, MODELS, SERVING
from .sidecar import checked
from .stands import SglangStand
from .timeline import watched
from .waiting import wait_for, wait_until

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

every_model = pytest.mark.parametrize("sglang", MODELS, indirect=True, ids=lambda model: model.name)
every_llama = pytest.mark.parametrize("sglang", SERVING, indirect=True, ids=lambda model: model.name)
llama = pytest.mark.parametrize("sglang", [LLAMA], indirect=True, ids=lambda model: model.name)
every_tier = pytest.mark.parametrize("context", [512, 1024])

# Requests that are held and then abandoned: they must not end before the engine is held.
_MORE_THAN_NEEDED = 1000
_PATIENCE_S = 60.0


@every_model
def test_the_sidecar_waits_for_its_engine(sglang: SglangStand) -> None:
    """A native sidecar container starts minutes before its engine: "down" then, no crash and no zeros."""
    assert sglang.before_engine.value(c.ENGINE_UP.name) == 0
    assert sglang.before_engine.all(c.CAPACITY_TOKENS.name) == []

    assert sglang.sidecar.scrape().value(c.ENGINE_UP.name) == 1


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
    """SGLang has no usage gauges until a batch has run: that is not "nothing in use".

    Nor until it was idle for half a minute: then it says itself that nothing is.
    """
    page = sglang.sidecar.scrape_fresh()
    told = sglang.engine.scrape()

    for name, theirs in (
        (c.USED_TOKENS.name, "sglang:kv_used_tokens"),
        (c.RUNNING_SEQUENCES.name, "sglang:num_running_reqs"),
        (c.WAITING_SEQUENCES.name, "sglang:num_queue_reqs"),
    ):
        if page.all(name):
            assert page.value(name) == told.total(theirs) == 0
            assert told.all(theirs)
        else:
            assert page.one(c.UNAVAILABLE.name, signal=name).labels["reason"] == "no_traffic"
    # An event counter is created by its first event; this release has it, so nothing has happened.
    assert page.value(c.PREEMPTIONS.name) == 0


@every_model
def test_the_capacity_is_the_engines(sglang: SglangStand) -> None:
    """Three sources must agree: the engine's log, its own figures and the sum done by hand."""
    told_bytes = sglang.engine.scrape().value("sglang:kv_cache_memory_usage_gb") * 2**30
    page = sglang.sidecar.scrape_fresh()
    tokens, context = logged = sglang.engine.logged_capacity()
    scene = sglang.checks.account.scene
    scene.idle = trimmed(sglang.engine.scrape().text)
    scene.logged = {"tokens": tokens, "context": context, "bytes": told_bytes}

    sglang.checks.all(sglang_figures.capacity(sglang.model, logged, told_bytes, page))


@every_model
def test_what_it_is_was_found_without_a_setting(sglang: SglangStand) -> None:
    """config.json from the path that the engine serves, the rest from the engine."""
    page = sglang.sidecar.scrape_fresh()
    info = page.one(c.ENGINE_INFO.name).labels

    assert page.value(c.CONFIG_LOADED.name) == 1
    assert info["config_source"] == "path"
    assert info["software"] == "sglang"
    assert info["version"] == sglang.engine.version()
    assert info["block_size"] == str(sglang.model.page_tokens)


@every_llama
def test_used_tokens_are_those_of_the_requests_held(sglang: SglangStand) -> None:
    """The heart of the matter: slots in use follow from the lengths of the requests, to the token."""
    # 16 lengths in a row, with page 64 on both sides of a page's end; a lone one; two long ones.
    for number, lengths in enumerate((range(120, 136), (100,), (700, 1001))):
        asyncio.run(_hold_and_compare(sglang, prompts(100 + number, lengths)))


async def _hold_and_compare(sglang: SglangStand, texts: Sequence[list[int]]) -> None:
    async with _load(sglang) as client:
        for prompt in texts:
            client.start(prompt, _MORE_THAN_NEEDED)
        # Two pictures of the same requests: the first shortly after the prefill, the second further on.
        for received_tokens in (2, 12):
            await client.hold(received_tokens)
            page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
            held = [request.computed_tokens for request in client.requests]
            free = (await client.scrape()).value("sglang:kv_available_tokens")
            sglang.checks.all(sglang_figures.held(sglang.model, held, page, free_slots=free))
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
            held = [request.computed_tokens for request in client.requests[:MAX_RUNNING]]
            sglang.checks.all(sglang_figures.held(sglang.model, held, page, waiting=3))

    asyncio.run(scenario())


@every_llama
def test_a_shared_prefix_counts_once(sglang: SglangStand) -> None:
    """Two requests over the same 130 tokens hold the whole pages of them together."""
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
            sglang.checks.all(sglang_figures.held(sglang.model, held, page, shared_tokens=130))

    asyncio.run(scenario())


@every_llama
def test_prefix_hits_are_whole_pages(sglang: SglangStand) -> None:
    """The second of two equal prompts hits its whole pages, but its last token is always computed."""
    unaligned, aligned = prompts(300, (170, 128))
    before = sglang.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(sglang) as client:
            for prompt in (unaligned, unaligned, aligned, aligned):
                await client.run(prompt, max_tokens=2)

    asyncio.run(scenario())
    page = sglang.sidecar.scrape_fresh()

    # Pages of 1: 169 + 127. Pages of 64: 169 = 2 x 64 + 41 and 127 = 64 + 63.
    hits = {1: 296, 64: 192}[sglang.model.page_tokens]
    sglang.checks.all(load_figures.prefix(before, page, 2 * 170 + 2 * 128, hits))


@every_llama
def test_prefix_hits_are_told_apart_by_route(sglang: SglangStand) -> None:
    """With custom labels switched on in the engine, each route has the hits of its own requests."""
    # Skipped here, not left out of the parameters: pytest would start both engines once more for it.
    if sglang.model is not LLAMA_PAGES:
        pytest.skip("started without custom labels")
    long, short = prompts(350, (300, 100))
    before = sglang.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(sglang) as client:
            for route, prompt in (("chat", long), ("chat", long), ("batch", short), ("chat", long)):
                await client.run(
                    prompt, max_tokens=2, headers={"x-custom-labels": json.dumps({"route": route})}
                )

    asyncio.run(scenario())
    page = sglang.sidecar.scrape_fresh()

    # 299 = 4 x 64 + 43, found by the second and the third.
    sglang.checks.all(load_figures.prefix(before, page, 3 * 300, 2 * 256, "route chat", route="chat"))
    sglang.checks.all(load_figures.prefix(before, page, 100, 0, "route batch", route="batch"))


@every_llama
def test_finished_requests_are_the_clients(sglang: SglangStand) -> None:
    """Every request that the client saw finish is counted once."""
    before = sglang.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(sglang) as client:
            for prompt in prompts(400, (10, 20, 30, 40, 50, 60, 70)):
                client.start(prompt, max_tokens=3)
            await client.finish()

    asyncio.run(scenario())

    page = load_figures.once_finished(sglang.sidecar, before, 7)
    sglang.checks.all(load_figures.finished(before, page, 7))


# So far ahead of the end that all are admitted, with one more than fit, before the first has grown much: else
# the last one would wait. No further, because every token of the way is a step of the engine.
_AHEAD = {512: 420, 1024: 760}


@every_llama
@every_tier
def test_as_many_sequences_fit_as_predicted(sglang: SglangStand, context: int) -> None:
    """That many grow to their full length side by side and nobody is retracted; with one more somebody is."""
    model, checks = sglang.model, sglang.checks
    before = sglang.sidecar.scrape_fresh()
    predicted = int(before.value(c.MAX_SEQUENCES.name, context=str(context)))
    prompt_tokens = _AHEAD[context]

    async def scenario() -> bool:
        async with _load(sglang) as client:
            await client.start_together(
                prompts(500, [prompt_tokens] * predicted), max_tokens=context - prompt_tokens + 1
            )
            # The last 31 tokens of the way: each holds the last page it will get.
            await client.hold(received_tokens=context - 30 - prompt_tokens)
            caught = not any(request.finished for request in client.requests)
            if caught:
                page = await asyncio.to_thread(sglang.sidecar.scrape_fresh)
                held = [request.computed_tokens for request in client.requests]
                if context == 512:
                    checks.account.scene.held = Held(held, trimmed((await client.scrape()).text))
                checks.all(sglang_figures.held(model, held, page))
            await client.resume()
            await client.finish()
            return caught

    # The moment lasts 31 tokens; on a busy machine the client may be late for it.
    assert any(asyncio.run(scenario()) for _ in range(5))
    after = sglang.sidecar.scrape_fresh()
    checks.check(claims.IDLE, expected=0, got=after.value(c.USED_TOKENS.name))
    unretracted = _retractions(after) == _retractions(before)
    _run_all(sglang, 600, prompt_tokens, context - prompt_tokens + 1, predicted + 1)
    retracted = _retractions(sglang.sidecar.scrape_fresh()) > _retractions(before)

    reached = predicted + 1 if not retracted else predicted if unretracted else predicted - 1
    checks.reached(context, predicted, reached)
    checks.check(claims.FITS, expected=reached, got=predicted, case=f"of {context} tokens")


@llama
def test_overload_is_counted_as_the_engine_counts_it(sglang: SglangStand) -> None:
    """40 requests of 400 tokens want 16,000 slots of 3,400: retractions and evictions are sure."""
    before, engine_before = sglang.sidecar.scrape_fresh(), sglang.engine.scrape()
    logged_before = len(_request_log(sglang))
    _run_all(sglang, seed=700, prompt_tokens=300, max_tokens=101, count=40)
    page = load_figures.once_finished(sglang.sidecar, before, 40)
    engine = sglang.engine
    sglang.checks.account.scene.overload = Overload(
        40, 300, trimmed(engine_before.text), trimmed(engine.scrape().text)
    )

    checks = sglang.checks
    assert _retractions(page) > _retractions(before)
    checks.all(sglang_figures.counters(engine.scrape(), page))
    # The engine writes its log after it has answered. Requests that were abandoned are not in it, but none of
    # those was ever retracted: they held little.
    wait_for(lambda: len(_request_log(sglang)) == logged_before + 40, _PATIENCE_S, "the engine's request log")
    checks.check(claims.PREEMPTIONS_LOGGED, expected=sum(_request_log(sglang)), got=_retractions(page))

    evicted = page.value(c.EVICTED_TOKENS.name)
    # 40 x 300 tokens went in; the pool, all of it, can have kept 3,400 of them.
    assert evicted - before.value(c.EVICTED_TOKENS.name) >= 40 * 300 - 3400
    checks.all(load_figures.finished(before, page, 40, "overload"))
    checks.check(claims.IDLE, expected=0, got=page.value(c.USED_TOKENS.name), case="after an overload")


# Seconds for which first tokens are held back, and each of the gaps that are made.
_HELD_FIRST_S, _HELD_S = 4.0, 2.0


@llama
def test_tiers_have_the_latency_that_their_clients_saw(sglang: SglangStand) -> None:
    """Long and short requests at once: each tier has its own requests' times."""
    before = sglang.sidecar.scrape_fresh()

    async def scenario() -> dict[int, load_figures.TierTruth]:
        async with _load(sglang) as client:
            texts = prompts(801, [60] * 4 + [600] * 2)
            await client.start_together(texts, max_tokens=120, held_seconds=_HELD_FIRST_S)
            await client.finish_with_gaps((2, 20, 40, 60), _HELD_S)
            return dict(load_figures.by_tier(client.requests, tiers=(512, 1024)))

    truth = asyncio.run(scenario())
    wait_for(
        lambda: load_figures.tier_requests(sglang.sidecar.scrape()) >= load_figures.tier_requests(before) + 6,
        _PATIENCE_S,
        "the reports of all requests",
    )

    sglang.checks.all(load_figures.latency(truth, before, sglang.sidecar.scrape_fresh()))


@llama
def test_who_hangs_up_is_no_finished_request(sglang: SglangStand) -> None:
    """Of five requests two are given up: three have finished, and what the two held is free again."""
    before = sglang.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(sglang) as client, _watched(sglang, client):
            given_up = [client.start(prompt, _MORE_THAN_NEEDED) for prompt in prompts(802, (1100, 900))]
            for prompt in prompts(803, (60, 60, 600)):
                client.start(prompt, max_tokens=40)
            for request in given_up:
                await client.hang_up(request)
            await client.finish()
            await client.idle()

    asyncio.run(scenario())
    page = load_figures.once_finished(sglang.sidecar, before, 3)

    sglang.checks.all(load_figures.finished(before, page, 3, "two more were given up"))
    sglang.checks.check(claims.IDLE, expected=0, got=page.maybe(c.USED_TOKENS.name), case="after hanging up")


def _watched(sglang: SglangStand, client: Load) -> AbstractAsyncContextManager[None]:
    return watched(
        sglang.checks.account,
        client,
        sglang.sidecar,
        ours=c.USED_TOKENS.name,
        engine=lambda page: sum(sample.value for sample in page.all("sglang:kv_used_tokens")),
        truth=sglang.model.slots_of_all,
    )


def _retractions(page: Page) -> float:
    return page.value(c.PREEMPTIONS.name)


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
        async with _load(sglang) as client, _watched(sglang, client):
            await client.start_together(prompts(seed, [prompt_tokens] * count), max_tokens)
            await client.finish()
            await client.idle()

    asyncio.run(scenario())
