"""Real pages, damaged: reading fails with its one error or gives figures that can be figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.engines import detect
from exporter.engines.info import parse_document, read_documents
from exporter.facts import Facts
from exporter.fetch import FetchError
from exporter.lookup import load_model
from exporter.settings import TargetSettings
from exporter.target import TargetState

from .mutations import EXAMPLES, ODD_TEXT, bytes_changed, lines_changed
from .surface import check

RECORDINGS = Path(__file__).parents[1] / "recordings"
VLLM, SGLANG = RECORDINGS / "vllm-0.32.0-llama-preemptions", RECORDINGS / "sglang-0.5.23-llama-retractions"
# Only what is read: the rest of a page is passed over, and a change there would find nothing.
PASSED_OVER = ("#", "python_", "http_")
SOURCES = [
    *(
        (folder / name, folder)
        for folder in (VLLM, RECORDINGS / "vllm-0.32.0-gemma2")
        for name in ("loaded.prom",)
    ),
    (RECORDINGS / "vllm-0.32.0-mamba2" / "loaded.prom", RECORDINGS / "vllm-0.32.0-mamba2"),
    (SGLANG / "loaded.prom", VLLM),  # the same tiny Llama
    (RECORDINGS / "sglang-0.5.23-boot" / "llama-dp2" / "metrics.prom", VLLM),
    *((case, VLLM) for case in sorted((RECORDINGS / "cases").glob("*.prom"))),
]
ENGINE = {
    "vllm": read_documents([parse_document('{"version": "0.32.0"}')], "vllm"),
    "sglang": read_documents([parse_document((SGLANG / "server_info.json").read_text())], "sglang"),
}


def wanted(text: str) -> str:
    """The page with its buckets thinned out: they are nine tenths of it, and no change there tells much."""
    lines = [line for line in text.splitlines() if not line.startswith(PASSED_OVER)]
    return "".join(f"{line}\n" for n, line in enumerate(lines) if "_bucket{" not in line or n % 7 == 0)


PAGES = [(wanted(file.read_text()), folder) for file, folder in SOURCES]
PAGES = [(text, folder) for text, folder in PAGES if detect.read(text).software]  # some cases are no engine's
MODELS = {folder: load_model(folder, None, allow_hub=False) for _, folder in PAGES}


def read(text: str, folder: Path, before: str | None = None) -> None:
    """As the poller does it, perhaps after another page."""
    state = TargetState(TargetSettings(url="http://engine:1"), [4096, 131072], 1.0)
    state.model = MODELS[folder]
    for at, page in enumerate([before, text] if before is not None else [text]):
        try:
            reading = state.read(page)
        except FetchError as error:
            state.fail(error.reason, str(error))
            continue
        state.learn(ENGINE.get(reading.page.software, Facts()), None)
        state.accept(reading, float(at), 1e9 + at)
    check(state)


fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@fuzz
@given(data=st.data())
def test_lines(data: st.DataObject) -> None:
    """Lines dropped, doubled, cut, with odd values and labels: on its own, and after the good page."""
    text, folder = data.draw(st.sampled_from(PAGES))
    changed = "\n".join(data.draw(lines_changed(text.split("\n"), ODD_TEXT)))
    read(changed, folder, text if data.draw(st.booleans()) else None)


@fuzz
@given(data=st.data())
def test_bytes(data: st.DataObject) -> None:
    """Bytes flipped, cut and doubled, as get_text would decode them."""
    text, folder = data.draw(st.sampled_from(PAGES))
    changed = data.draw(bytes_changed(text.encode()))
    read(changed.decode("utf-8", errors="replace"), folder)


@fuzz
@given(data=st.data())
def test_two_pages_in_one(data: st.DataObject) -> None:
    """A proxy that mixes up answers: lines of two engines, one after the other or shuffled together."""
    (one, folder), (two, _) = data.draw(st.sampled_from(PAGES)), data.draw(st.sampled_from(PAGES))
    lines = data.draw(st.permutations((one + two).splitlines()[:120]))
    read("".join(f"{line}\n" for line in lines), folder)


def test_the_good_pages_are_good() -> None:
    """The bait: every one of them is read."""
    assert len(PAGES) > 15
    for text, folder in PAGES:
        state = TargetState(TargetSettings(url="http://engine:1"), [4096], 1.0)
        state.model = MODELS[folder]
        state.accept(state.read(text), 0.0)
        assert state.up


RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
NAMES = RUNNING + '{{model_name="m{0}"}} 1\n'
ENGINES = RUNNING + '{{engine="{0}",model_name="m"}} 1\n' + WAITING + '{{engine="{0}"}} 1\n'
MIXED = NAMES + WAITING + '{{engine="{0}"}} 1\n'
ROUTES = 'sglang:cached_tokens_total{{route="r{0}"}} 1\nsglang:prompt_tokens_total{{route="r{0}"}} 2\n'
LONG = RUNNING + '{{model_name="{0}' + "x" * 60_000 + '"}} 1\n'
LONG_ENOUGH = RUNNING + '{{model_name="{0}' + "x" * 500 + '",engine="' + "y" * 500 + '{0}"}} 1\n'
ROUTED = 'sglang:num_running_reqs{{model_name="m"}} 1\n'


@pytest.mark.parametrize(
    ("head", "line", "many"),
    [
        ("", NAMES, 100_000),
        ("", ENGINES, 50_000),
        ("", MIXED, 50_000),
        (ROUTED.format(), ROUTES, 50_000),
        ("vllm:num_requests_running 1\n", LONG, 130),
        ("", LONG_ENOUGH, 7_000),
    ],
    ids=["names", "engines", "mixed", "routes", "long labels", "labels at the limit"],
)
def test_floods(head: str, line: str, many: int) -> None:
    """8 MB of series, each of which would be a rank, a route or a label: our page stays in bounds."""
    read(head + "".join(line.format(n) for n in range(many)), VLLM)
