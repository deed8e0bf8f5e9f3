"""The sidecar beside a real vLLM, against what the client of that engine knows to be true.

The engine is held still while we look (its scheduler can be paused with all requests in place), so block
counts are compared as integers, without a tolerance.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict

import pytest

from exporter import catalogue as c
from exporter.recording import read

from . import claims, load_figures, report, vllm_figures
from .load import Load, load, prompts
from .page import Page
from .scenes import Held, Overload, trimmed
from .sidecar import checked, recorded
from .stands import Stand
from .timeline import watched
from .truth import LLAMA, MODELS
from .waiting import wait_for

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

every_model = pytest.mark.parametrize("stand", MODELS, indirect=True, ids=lambda model: model.name)
# Not hybrids: there, where a state was kept decides how much of a prefix is found.
prefix_caching_models = pytest.mark.parametrize(
    "stand",
    [m for m in MODELS if m.caches_prefixes and not m.hybrid],
    indirect=True,
    ids=lambda model: model.name,
)
llama = pytest.mark.parametrize("stand", [LLAMA], indirect=True, ids=lambda model: model.name)
every_tier = pytest.mark.parametrize("context", [512, 1024])

# Requests that are held and then abandoned: they must not end before the engine is held.
_MORE_THAN_NEEDED = 1000
_PATIENCE_S = 60.0


@every_model
def test_the_sidecar_waits_for_its_engine(stand: Stand) -> None:
    """A native sidecar container starts minutes before its engine: "down" then, no crash and no zeros."""
    assert stand.before_engine.value(c.ENGINE_UP.name) == 0
    assert stand.before_engine.all(c.USED_BLOCKS.name) == []

    assert stand.sidecar.scrape().value(c.ENGINE_UP.name) == 1


@every_model
def test_the_capacity_is_the_engines(stand: Stand) -> None:
    """Four sources must agree: the engine's log, its info metric, its tensors and the sum done by hand."""
    page = stand.sidecar.scrape_fresh()
    log, engine, memory = stand.engine.capacity_line(), stand.engine.scrape(), stand.engine.memory()
    scene = stand.checks.account.scene
    scene.idle = trimmed(engine.text)
    scene.logged = {**asdict(log), "tensor_bytes": memory.tensor_bytes}

    stand.checks.all(vllm_figures.capacity(stand.model, log, engine, page))
    stand.checks.all(vllm_figures.memory(memory, page))
    assert stand.model.kv_cache_bytes - stand.model.block_bytes < page.value(c.CAPACITY_BYTES.name)


@every_model
def test_check_says_that_all_is_well(stand: Stand) -> None:
    """The doctor on a real engine: nothing wrong, every byte known, and the flags that would help."""
    code, told = checked(stand.engine.url)

    assert (code, told["engine"], told["arithmetic"]["agrees"]) == (0, "vllm", True)
    assert told["model_names"] == [stand.model.directory]
    assert told["model_config"]["found"]
    available = {signal["signal"] for signal in told["signals"] if signal["available"]}
    assert {"kvcache_bytes_per_token", "kvcache_capacity_bytes", "kvcache_max_sequences"} <= available
    flags = {(advice["flag"] or "").split(" ")[0] for advice in told["advice"]}
    # Started with traces, and without the cache's own histograms.
    assert "--kv-cache-metrics" in flags
    assert "--otlp-traces-endpoint" not in flags


@every_model
def test_used_blocks_are_those_of_the_requests_held(stand: Stand) -> None:
    """The heart of the matter: blocks in use follow from the lengths of the requests, to the integer."""
    for number, lengths in enumerate(stand.model.pictures):
        asyncio.run(_hold_and_compare(stand, seed=100 + number, lengths=lengths))


async def _hold_and_compare(stand: Stand, seed: int, lengths: tuple[int, ...]) -> None:
    async with _load(stand) as client:
        for prompt in prompts(seed, lengths):
            client.start(prompt, _MORE_THAN_NEEDED)
        # Two pictures of the same requests: the first shortly after the prefill, the second further on.
        for received_tokens in (2, 12):
            await client.hold(received_tokens)
            page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
            held = [request.computed_tokens for request in client.requests]
            stand.checks.all(vllm_figures.held(stand.model, held, page))
            await client.resume()


@prefix_caching_models
def test_a_shared_prefix_counts_once(stand: Stand) -> None:
    """Two requests over the same 128 tokens hold those 4 blocks together, in every group that keeps them."""
    model = stand.model
    shared = 128 // model.block_size * len(model.groups)

    async def scenario(seed: int) -> bool:
        prefix, first_tail, second_tail = prompts(seed, (128, 10, 20))
        async with _load(stand) as client:
            client.start(prefix + first_tail, _MORE_THAN_NEEDED)
            await client.hold()
            client.start(prefix + second_tail, _MORE_THAN_NEEDED)
            await client.resume()
            await client.hold()
            held = [request.computed_tokens for request in client.requests]
            if max(held) > 256:
                return False  # held too late: beyond Gemma's window the shared blocks are let go
            page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
            stand.checks.all(vllm_figures.held(model, held, page, shared))
            return True

    # On a busy machine the client may be late for the moment.
    assert any(asyncio.run(scenario(seed)) for seed in range(200, 205))


@prefix_caching_models
def test_prefix_hits_are_whole_blocks(stand: Stand) -> None:
    """The second of two equal prompts hits its whole blocks, but its last token is always computed."""
    unaligned, aligned = prompts(300, (170, 160))
    before = stand.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(stand) as client:
            for prompt in (unaligned, unaligned, aligned, aligned):
                await client.run(prompt, max_tokens=2)

    asyncio.run(scenario())
    page = stand.sidecar.scrape_fresh()

    # 170 = 5 x 32 + 10; 160 - 1 = 4 x 32 + 31
    hits = {32: 5 * 32 + 4 * 32, 64: 2 * 64 + 2 * 64}[stand.model.block_size]
    stand.checks.all(load_figures.prefix(before, page, 2 * 170 + 2 * 160, hits))
    stand.checks.all(vllm_figures.counters(stand.engine.scrape(), page))


@every_model
def test_a_matchable_prefix_is_named_only_where_prefixes_are_cached(stand: Stand) -> None:
    """0.32.0 turns prefix caching off for MLA on most CPUs: no prefix can match, which is not "one block"."""
    page = stand.sidecar.scrape_fresh()
    name = c.PREFIX_MATCHABLE_TOKENS.name

    if stand.model.caches_prefixes:
        assert page.value(name) == stand.model.block_size
    else:
        assert page.all(name) == []
        why = page.one(c.UNAVAILABLE.name, signal=name).labels
        assert why["reason"] == "prefix_caching_off"


@every_model
def test_finished_requests_are_the_clients(stand: Stand) -> None:
    """Every request that the client saw finish is counted once; nothing is held afterwards."""
    before = stand.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(stand) as client:
            for prompt in prompts(400, (10, 20, 30, 40, 50, 60, 70)):
                client.start(prompt, max_tokens=3)
            await client.finish()

    asyncio.run(scenario())
    page = load_figures.once_finished(stand.sidecar, before, 7)

    stand.checks.all(load_figures.finished(before, page, 7))
    stand.checks.all(vllm_figures.counters(stand.engine.scrape(), page))
    stand.checks.check(claims.IDLE, expected=0, got=page.value(c.USED_BLOCKS.name))


@every_model
@every_tier
def test_as_many_sequences_fit_as_predicted(stand: Stand, context: int) -> None:
    """That many grow to their full length side by side and nobody is preempted; with one more somebody is."""
    model, checks = stand.model, stand.checks
    before = stand.sidecar.scrape_fresh()
    predicted = int(before.value(c.MAX_SEQUENCES.name, context=str(context)))
    prompt_tokens = model.prompts[context]

    async def scenario() -> bool:
        async with _load(stand) as client:
            await client.start_together(
                prompts(500, [prompt_tokens] * predicted), max_tokens=context - prompt_tokens + 1
            )
            # The last 31 tokens of the way: each holds the last block it will get.
            await client.hold(received_tokens=context - 30 - prompt_tokens)
            caught = not any(request.finished for request in client.requests)
            if caught:
                page = await asyncio.to_thread(stand.sidecar.scrape_fresh)
                held = [request.computed_tokens for request in client.requests]
                if context == 512:
                    checks.account.scene.held = Held(held, trimmed((await client.scrape()).text))
                checks.all(vllm_figures.held(model, held, page))
            await client.resume()
            await client.finish()
            return caught

    # The moment lasts 31 tokens; on a busy machine the client may be late for it.
    assert any(asyncio.run(scenario()) for _ in range(5))
    unpreempted = _preemptions(stand.sidecar.scrape_fresh()) == _preemptions(before)

    def preempts(attempt: int) -> bool:
        many = predicted + 1
        _run_all(stand, 600 + attempt, prompt_tokens, context - prompt_tokens + 1, many, attempt / 2)
        return _preemptions(stand.sidecar.scrape_fresh()) > _preemptions(before)

    # A state holds its second block for one token: only sequences that are in step with each other need all
    # of them at once. The engine takes into its first step what it has by then, so it is given more time.
    preempted = any(preempts(n) for n in range(6 if model.hybrid else 1))

    reached = predicted + 1 if not preempted else predicted if unpreempted else predicted - 1
    checks.reached(context, predicted, reached)
    checks.check(claims.FITS, expected=reached, got=predicted, case=f"of {context} tokens")


@llama
def test_overload_is_counted_as_the_engine_counts_it(stand: Stand) -> None:
    """48 requests of 500 tokens want 768 blocks of 303: some are preempted, some of them more than once.

    18 get to their end side by side; the other 30 come back half done, and grow beyond the pool again.
    """
    before, engine_before = stand.sidecar.scrape_fresh(), stand.engine.scrape()
    recording = report.directory() / "recordings" / f"{stand.checks.account.scene.name}.jsonl.gz"
    with recorded(stand.engine.url, recording):
        _run_all(stand, seed=700, prompt_tokens=100, max_tokens=401, count=48)
    assert len(read(recording).frames) > 2
    page = load_figures.once_finished(stand.sidecar, before, 48)
    engine = stand.engine.scrape()
    stand.checks.account.scene.overload = Overload(48, 100, trimmed(engine_before.text), trimmed(engine.text))

    events = _preemptions(page) - _preemptions(before)
    stand.checks.all(vllm_figures.counters(engine, page))
    stand.checks.all(
        vllm_figures.overload(engine_before, engine, before, page, requests=48, prompt_tokens=100)
    )
    # Else events and requests are the same number, and the check could not tell them apart.
    told = [vllm_figures.preempted_at_least_once(one) for one in (engine_before, engine)]
    assert events > told[1] - told[0] > 0
    stand.checks.check(
        claims.PREFIX_QUERIES,
        expected=engine.total("vllm:prompt_tokens_total"),
        got=page.total(c.PREFIX_QUERY_TOKENS.name),
        case="against the engine's prompt tokens",
    )
    stand.checks.check(claims.IDLE, expected=0, got=page.value(c.USED_BLOCKS.name), case="after an overload")


# Seconds for which first tokens are held back, and each of the gaps that are made.
_HELD_FIRST_S, _HELD_S = 4.0, 2.0


@llama
def test_tiers_have_the_latency_that_their_clients_saw(stand: Stand) -> None:
    """Long and short requests at once: each tier has its own requests' times."""
    before = stand.sidecar.scrape_fresh()

    async def scenario() -> dict[int, load_figures.TierTruth]:
        async with _load(stand) as client:
            texts = prompts(801, [60] * 4 + [600] * 2)
            await client.start_together(texts, max_tokens=120, held_seconds=_HELD_FIRST_S)
            await client.finish_with_gaps((2, 20, 40, 60), _HELD_S)
            return dict(load_figures.by_tier(client.requests, tiers=(512, 1024)))

    truth = asyncio.run(scenario())
    wait_for(
        lambda: load_figures.tier_requests(stand.sidecar.scrape()) >= load_figures.tier_requests(before) + 6,
        _PATIENCE_S,
        "the reports of all requests",
    )

    stand.checks.all(load_figures.latency(truth, before, stand.sidecar.scrape_fresh()))


@llama
def test_who_hangs_up_is_no_finished_request(stand: Stand) -> None:
    """Of five requests two are given up: three have finished, and what the two held is free again."""
    before = stand.sidecar.scrape_fresh()

    async def scenario() -> None:
        async with _load(stand) as client, _watched(stand, client):
            given_up = [client.start(prompt, _MORE_THAN_NEEDED) for prompt in prompts(802, (1100, 900))]
            for prompt in prompts(803, (60, 60, 600)):
                client.start(prompt, max_tokens=40)
            for request in given_up:
                await client.hang_up(request)
            await client.finish()
            await client.idle()

    asyncio.run(scenario())
    page = load_figures.once_finished(stand.sidecar, before, 3)

    stand.checks.all(load_figures.finished(before, page, 3, "two more were given up"))
    stand.checks.check(claims.IDLE, expected=0, got=page.maybe(c.USED_BLOCKS.name), case="after hanging up")


def _load(stand: Stand) -> AbstractAsyncContextManager[Load]:
    return load(stand.engine.url, stand.engine.model_name)


def _watched(stand: Stand, client: Load) -> AbstractAsyncContextManager[None]:
    usable = stand.model.usable_blocks
    return watched(
        stand.checks.account,
        client,
        stand.sidecar,
        ours=c.USED_BLOCKS.name,
        engine=lambda page: page.total("vllm:kv_cache_usage_perc") * usable,
        truth=stand.model.blocks_of_all,
    )


def _preemptions(page: Page) -> float:
    return page.value(c.PREEMPTIONS.name)


def _run_all(
    stand: Stand, seed: int, prompt_tokens: int, max_tokens: int, count: int, held_seconds: float = 0.0
) -> None:
    async def scenario() -> None:
        async with _load(stand) as client, _watched(stand, client):
            await client.start_together(prompts(seed, [prompt_tokens] * count), max_tokens, held_seconds)
            await client.finish()
            await client.idle()

    asyncio.run(scenario())
