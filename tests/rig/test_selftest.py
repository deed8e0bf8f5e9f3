"""Can each check fail? The arithmetic is broken on purpose, and the checks have to say so.

No engine runs: scenes that real engines played (tests/rig/scenes) are read by the exporter again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from exporter import catalogue as c
from exporter.collect import EngineCollector
from exporter.requests.record import RequestRecord, Source
from exporter.requests.sink import RecordSink
from exporter.settings import TargetSettings
from exporter.target import TargetState

from . import claims, load_figures, vllm_figures
from .checks import Figure, Ledger, Subject
from .claims import CLAIMS, Claim
from .engine import _CAPACITY_LINE, MeasuredPool
from .load import Request
from .mutants import MUTANTS, Mutant
from .page import Page
from .replay import figures
from .scenes import Scene
from .truth import LLAMA, LLAMA_GIBIBYTE, RigModel

SCENES = Path(__file__).with_name("scenes")

# Judged only beside a running engine: what they compare is no page of the engine's, or only a GPU has it.
LIVE = {
    claims.SHARED_BLOCKS, claims.IDLE, claims.FITS, claims.PREFIX_HITS, claims.PREEMPTIONS_LOGGED,
    claims.PREEMPTED_REQUESTS, claims.ALERT_DELAY,
}  # fmt: skip
MEMORY = {claims.TENSOR_BYTES, claims.ALLOCATOR_BYTES, claims.DRIVER_BYTES}
LATENCY = {claims.ITL, claims.TTFT, claims.TIER_REQUESTS}


def scenes() -> list[Path]:
    return sorted(SCENES.glob("*.json"))


def red(found: Sequence[Figure]) -> set[Claim]:
    return {figure.claim for figure in found if not figure.passes}


@pytest.mark.parametrize("path", scenes(), ids=lambda path: path.stem)
def test_unbroken_every_check_passes(path: Path) -> None:
    """What the engines said then, read by the exporter of today."""
    found = list(figures(Scene.read(path)))

    assert len(found) > 5
    assert [figure for figure in found if not figure.passes] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.do.__name__)
def test_broken_arithmetic_turns_its_checks_red(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named checks, at least; a figure that is withheld because it can't be right is red as well."""
    mutant.do(monkeypatch)
    found = list(figures(Scene.read(SCENES / f"{mutant.scene}-cpu.json")))

    assert set(mutant.red) <= red(found)


# What the memory probe wrote of vLLM 0.26.0 in the rehearsal without a GPU: block tables and slot mappings
# are not in it (counted around all of the worker's start they added 133,120 bytes to the smaller pool).
PROBED = Path(__file__).with_name("gpu") / "recorded"


def memory_page(pool_bytes: float) -> Page:
    """A page of ours that says so many bytes."""
    return Page.parse(f"{c.CAPACITY_BYTES.name} {pool_bytes:.0f}\n")


@pytest.mark.parametrize("model", [LLAMA, LLAMA_GIBIBYTE], ids=lambda model: model.name)
def test_memory_as_counted_passes_and_one_block_is_seen(model: RigModel) -> None:
    """A block more or less is red by torch's tensors and its allocator; pages of 2 MiB by the driver."""
    measured = MeasuredPool.of([json.loads((PROBED / f"{model.name}.json").read_text())])
    right = model.num_blocks * model.block_bytes
    torch = {claims.TENSOR_BYTES, claims.ALLOCATOR_BYTES}
    big = right >= vllm_figures.DRIVER_SEES_BYTES
    judged = torch | {claims.DRIVER_BYTES} if big else torch

    found = list(vllm_figures.memory(measured, memory_page(right)))
    assert {figure.claim for figure in found} == judged
    assert red(found) == set()
    for wrong in (right - model.block_bytes, right + model.block_bytes):
        assert red(list(vllm_figures.memory(measured, memory_page(wrong)))) == torch
    for share in (0, 0.5, 0.98, 1.02, 2):
        assert red(list(vllm_figures.memory(measured, memory_page(share * right)))) == judged


@pytest.mark.parametrize(
    "log",
    [
        "CPU KV cache size: 9,728 tokens, Maximum concurrency for 4,096 tokens per request: 2.38x\n",
        "(Core pid=1) INFO [utils.py:1] GPU KV cache size: 9,728 tokens\n"
        "(Core pid=1) INFO [utils.py:2] Maximum concurrency for 4,096 tokens per request: 2.38x\n",
    ],
    ids=["0.32.0", "0.26.0"],
)
def test_the_capacity_is_read_in_each_releases_words(log: str) -> None:
    """One line since, two before."""
    found = _CAPACITY_LINE.search(log)

    assert found is not None
    assert found.groups() == ("9,728", "4,096", "2.38")


def test_a_driver_that_gave_nothing_is_seen() -> None:
    """A pool of 1 GiB for which the driver has no byte less is none."""
    right = LLAMA_GIBIBYTE.num_blocks * LLAMA_GIBIBYTE.block_bytes
    measured = MeasuredPool(right, 4, right, 0)

    assert red(list(vllm_figures.memory(measured, memory_page(right)))) == {claims.DRIVER_BYTES}


def test_ranks_are_added_up() -> None:
    """Two workers of one engine each hold half of its pool; where one could not measure, neither has."""
    one = {"storage_bytes": 5, "storages": 4, "requested_by_pool": 5, "device_free_drop": 6}

    assert MeasuredPool.of([one, one]) == MeasuredPool(10, 8, 10, 12)
    assert MeasuredPool.of([one, {"storage_bytes": 5, "storages": 4}]) == MeasuredPool(10, 8, None, None)


def latency_page(requests: Sequence[Request]) -> Page:
    """Our page once an engine has reported these requests with the times that their client saw."""
    state = TargetState(TargetSettings(url="http://127.0.0.1:1"), [512, 1024], 2.0)
    state.records = RecordSink("engine", [512, 1024])
    for number, one in enumerate(requests):
        decode = one.gap_seconds * (one.received_tokens - 1)
        record = RequestRecord(
            str(number), one.prompt_tokens, one.received_tokens, time.time(), Source.TRACE,
            ttft_seconds=one.ttft_seconds, prefill_seconds=one.ttft_seconds, decode_seconds=decode,
        )  # fmt: skip
        state.records.accept(record)
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: [state], lambda: 0.0))
    return Page.parse(generate_latest(registry).decode())


def requests() -> list[Request]:
    """Two of the first tier, one of the second: 20 and 60 ms a gap, six tokens each."""
    made = []
    for prompt, gap in ((60, 0.02), (80, 0.02), (600, 0.06)):
        one = Request(prompt, received_tokens=6, started_at=10.0, first_token_at=11.0)
        one.last_token_at = 11.0 + 5 * gap
        made.append(one)
    return made


def latency_figures() -> list[Figure]:
    truth = load_figures.by_tier(requests(), (512, 1024))
    return list(load_figures.latency(truth, latency_page([]), latency_page(requests())))


def test_latency_by_tier_passes_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps that are as many as the tokens, a tier by the prompt's length, times in milliseconds."""
    assert red(latency_figures()) == set()

    with monkeypatch.context() as patch:
        patch.setattr(
            RequestRecord, "itl_seconds", property(lambda r: (r.decode_seconds or 0.0) / r.output_tokens)
        )
        assert red(latency_figures()) == {claims.ITL}
    with monkeypatch.context() as patch:
        patch.setattr(RequestRecord, "context_tokens", property(lambda r: r.prompt_tokens + 450))
        assert claims.TIER_REQUESTS in red(latency_figures())
    with monkeypatch.context() as patch:
        right = RecordSink.accept

        def late(self: RecordSink, record: RequestRecord) -> bool:
            object.__setattr__(record, "ttft_seconds", (record.ttft_seconds or 0.0) * 1000)
            return right(self, record)

        patch.setattr(RecordSink, "accept", late)
        assert claims.TTFT in red(latency_figures())


def test_every_claim_is_seen_red() -> None:
    """A claim that no mistake turns red is listed as one that only a running engine can judge."""
    broken = {claim for mutant in MUTANTS for claim in mutant.red} | LATENCY | MEMORY

    assert set(CLAIMS.values()) - broken == LIVE


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=lambda claim: claim.name)
def test_a_claim_tells_its_tolerance_from_more(claim: Claim) -> None:
    """Just within passes, just beyond fails, nothing at all fails."""
    edge = claim.allowed(1000.0)

    assert Figure(claim, 1000.0, 1000.0).passes
    assert Figure(claim, 1000.0, 1000.0 + 0.99 * edge).passes
    assert not Figure(claim, 1000.0, 1000.0 + 1.01 * edge + 1e-9).passes
    assert not Figure(claim, 1000.0, None).passes


def test_a_failed_check_is_kept_and_raised() -> None:
    """What fails is in the report, and so is what came after it."""
    ledger = Ledger()
    checks = ledger.of(Subject("vllm", "0", "llama"))

    with pytest.raises(AssertionError, match="expected 3 by the client's count of tokens, got 4"):
        checks.all([Figure(claims.USED_BLOCKS, 3, 4), Figure(claims.RUNNING, 1, 1)])

    (entry,) = ledger.results()
    assert [(c["name"], c["pass"]) for c in entry["checks"]] == [
        ("used_blocks", False),
        ("running_sequences", True),
    ]
