"""Pages that can be read but should not be believed: what must be there, what must be absent, and why.

As in the tests of bad answers, one exporter watches all of them beside a healthy engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, page, renamed, vllm, with_value
from .page import DROPPED, ERRORS, Page
from .running import InProcess

GOOD = page()
USAGE, PREEMPTIONS, RUNNING = (
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
)
ODD_NAME = 'we"ird\\na{m}e,= # \N{SNOWMAN}'  # what the engine means, with a real backslash and an n
WRITTEN = ODD_NAME.replace("\\", "\\\\").replace('"', '\\"')  # how the format spells it
LONG = "x" * 70_000  # over the line limit of 65,536 characters

# Series that each name an engine of their own.
RANKS = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="llama"}} 1\n' for n in range(300))
# One server's data-parallel ranks, or the replicas on a Ray page, are some dozens.
MOST_RANKS = 256


@dataclass(frozen=True, slots=True)
class Case:
    """A page, the reasons for dropped samples, and the one figure that must go (with its reason)."""

    text: str | bytes
    dropped: frozenset[str] = frozenset()
    gone: str = ""
    why: str = ""
    model_name: str = "llama"


def _case(
    text: str | bytes, dropped: str = "", gone: str = "", why: str = "", model_name: str = "llama"
) -> Case:
    return Case(text, frozenset(dropped.split()), gone, why, model_name)


CASES = {
    "nan": _case(with_value(GOOD, USAGE, "NaN"), "not_finite", "kvcache_usage_ratio", "not_reported"),
    "inf": _case(
        with_value(GOOD, RUNNING, "+Inf"), "not_finite", "kvcache_running_sequences", "not_reported"
    ),
    "negative": _case(
        with_value(GOOD, PREEMPTIONS, "-19.0"), "negative", "kvcache_preemptions_total", "not_reported"
    ),
    "over-one": _case(with_value(GOOD, USAGE, "1.7"), "", "kvcache_usage_ratio", "out_of_range"),
    "half-a-sequence": _case(
        with_value(GOOD, RUNNING, "9.5"), "", "kvcache_running_sequences", "out_of_range"
    ),
    "no-number": _case(
        with_value(GOOD, RUNNING, "many"), "malformed_line", "kvcache_running_sequences", "not_reported"
    ),
    "open-label": _case(
        GOOD + 'vllm:num_requests_running{engine="0,model_name="llama} 3\n', "malformed_line"
    ),
    "unknown-type": _case(GOOD.replace(" gauge\n", " stateset\n").replace(" counter\n", " riddle\n")),
    "no-types": _case("".join(line for line in GOOD.splitlines(True) if not line.startswith("#"))),
    # Every family and every series twice, the values the same: each counts once.
    "twice": _case(GOOD + GOOD, "duplicate_series"),
    "crlf": _case(GOOD.replace("\n", "\r\n")),
    "bom": _case("\ufeff" + GOOD),
    "odd-name": _case(renamed(GOOD, WRITTEN.replace("\\", r"\\")), model_name=ODD_NAME),
    "bad-utf8": _case(GOOD.encode().replace(b'"llama"', b'"ll\xffama"'), model_name="ll\ufffdama"),
    "long-label": _case(
        GOOD + f'vllm:request_success_total{{finished_reason="{LONG}"}} 1\n', "line_too_long"
    ),
    "timestamps": _case(with_value(GOOD, RUNNING, "9.0 1795987760000")),
}


@pytest.fixture(scope="module")
def seen() -> Iterator[Page]:
    """One scrape of the exporter after two polls of everybody."""
    engines = {name: vllm(case.text) for name, case in CASES.items()}
    with (
        h.HostileServer({**engines, "healthy": vllm()}) as server,
        InProcess({name: server.url(name) for name in server.engines}) as running,
    ):
        running.wait(lambda p: p.values("kvcache_engine_up") == [1.0] * len(server.engines), "all up")
        yield running.wait_for_polls("healthy", 2)


@pytest.mark.parametrize("name", CASES)
def test_only_what_is_unusable_goes(seen: Page, name: str) -> None:
    """The bad sample is counted under its reason and becomes an absent series; the rest is as ever."""
    case = CASES[name]
    assert seen.value("kvcache_engine_up", target=name) == 1
    assert seen.reasons(ERRORS, name) == {}
    assert set(seen.reasons(DROPPED, name)) == case.dropped
    # As on the recorded page; the bytes from its config.json.
    expected = {
        "kvcache_usage_ratio": 1.0,
        "kvcache_running_sequences": 9.0,
        "kvcache_waiting_sequences": 2.0,
        "kvcache_preemptions_total": 19.0,
        "kvcache_bytes_per_token": LLAMA_BYTES_PER_TOKEN,
    }
    for metric, value in expected.items():
        found = seen.values(metric, target=name, model_name=case.model_name)
        assert found == ([] if metric == case.gone else [value]), metric
    if case.gone:
        assert seen.why_missing(name)[case.gone] == case.why
        assert seen.all(case.gone, target=name) == []


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.gone])
def test_series_are_those_of_the_healthy_engine(seen: Page, name: str) -> None:
    """Where nothing must go, nothing goes: the same names and labels as a clean page gives."""
    names = sorted(series for series, _ in seen.series(name))
    assert names == sorted(series for series, _ in seen.series("healthy"))


def test_counters_that_go_back_are_a_restart() -> None:
    """Fewer preemptions than before can only be another process; the counter follows the engine's."""
    with (
        h.HostileServer({"engine": vllm()}) as server,
        InProcess({"engine": server.url("engine")}) as exporter,
    ):
        exporter.wait(lambda p: p.values("kvcache_preemptions_total") == [19.0], "the first process")
        assert exporter.scrape().value("kvcache_exporter_engine_restarts_total") == 0
        exporter.wait_for_polls("engine", 2)
        assert exporter.scrape().value("kvcache_exporter_engine_restarts_total") == 0
        server.engines["engine"] = vllm(with_value(GOOD, PREEMPTIONS, "3.0"))
        after = exporter.wait(lambda p: p.values("kvcache_preemptions_total") == [3.0], "the second process")
        assert after.value("kvcache_exporter_engine_restarts_total") == 1
        # The second one is not taken for a restart at each further poll.
        assert exporter.wait_for_polls("engine", 2).value("kvcache_exporter_engine_restarts_total") == 1


def test_two_values_of_one_series_leave_the_first() -> None:
    """Nobody can tell which of the two is meant; it must stay one series, and be counted."""
    text = GOOD + 'vllm:num_requests_running{engine="0",model_name="llama"} 4.0\n'
    with (
        h.HostileServer({"engine": vllm(text)}) as server,
        InProcess({"engine": server.url("engine")}) as exporter,
    ):
        seen = exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine")
        assert seen.values("kvcache_running_sequences") == [9.0]
        assert seen.reasons(DROPPED, "engine")["duplicate_series"] >= 1


def test_engines_on_one_page_have_a_limit() -> None:
    """Each engine on a page costs dozens of series, and telling them apart costs their number squared.

    A page of 2,000 engines (120 kB) held the event loop for over half a minute.
    """
    with (
        h.HostileServer({"engine": vllm(RANKS)}) as server,
        InProcess({"engine": server.url("engine")}) as exporter,
    ):
        seen = exporter.wait(lambda p: p.all("kvcache_running_sequences", engine="9"), "the page")
        assert len(seen.all("kvcache_running_sequences")) <= MOST_RANKS
