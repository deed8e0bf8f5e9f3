"""The recordings the demo replays: which page is on show when, and that they are the engines' own."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.demo import NAMES, load
from exporter.recording import Frame, Header, Recording


def recording(*times: float) -> Recording:
    """A made-up run whose page at second t reads "t"."""
    header = Header(exporter="1", software="vllm", recorded_at="now", interval_seconds=1)
    return Recording(header, tuple(Frame.of(t, str(t)) for t in times))


def sample(page: str, name: str, **labels: str) -> float:
    """The one value of ``name`` whose labels include ``labels``, read with client_python's own parser."""
    (value,) = [
        s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    return value


@pytest.mark.parametrize(
    ("elapsed", "shown"),
    [
        (0.0, "0.0"),
        (0.99, "0.0"),
        (1.0, "1.0"),
        (2.49, "1.0"),
        (2.5, "2.5"),
        # Two gaps in 2.5 s: the last page stays 1.25 s, so a round is 3.75 s.
        (3.74, "2.5"),
        (3.75, "0.0"),
        (3.75 * 1000 + 1.25, "1.0"),
    ],
)
def test_a_frame_is_shown_from_its_time_to_the_next_ones(elapsed: float, shown: str) -> None:
    """Off by one here would show a page before the engine said it, or never show the last."""
    assert recording(0.0, 1.0, 2.5).frame_at(elapsed).page_text == shown


def test_a_single_frame_is_always_on_show() -> None:
    """A loop of length zero would divide by zero."""
    assert recording(0.0).frame_at(12.3).page_text == "0.0"


@pytest.mark.parametrize("times", [(), (0.5, 1.0), (0.0, 2.0, 1.0), (0.0, 1.0, 1.0)])
def test_frames_out_of_order_are_refused(times: tuple[float, ...]) -> None:
    """The search for the frame of the moment relies on rising times from zero."""
    with pytest.raises(ValueError, match="page"):
        recording(*times)


def test_an_unknown_recording_is_a_key_error() -> None:
    """A typing error must not end as an empty engine."""
    with pytest.raises(KeyError):
        load("tgi")


# Read off the files themselves: `zcat FILE | wc -l`, and the sums of the named counter's samples over all
# labels on the first and the last line.
FACTS = {
    "vllm": (36, "vllm:num_preemptions_total", 0.0, 73.0),
    "sglang": (33, "sglang:num_requests_total", 40.0, 184.0),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_run_is_whole_and_its_pages_parse(name: str) -> None:
    """The demo is honest only while it shows every page, from the first to the last."""
    frames, counter, first, last = FACTS[name]
    run = load(name)
    assert len(run.frames) == frames
    totals = [
        sum(
            s.value
            for family in text_string_to_metric_families(frame.page_text)
            for s in family.samples
            if s.name == counter
        )
        for frame in (run.frames[0], run.frames[-1])
    ]
    assert totals == [first, last]


def test_the_runs_are_held_deflated() -> None:
    """As text the two runs are 10 MB, more than the exporter itself may take; deflated they are 0.55 MB."""
    held = sum(len(frame.deflated) for name in NAMES for frame in load(name).frames)
    assert held < 1_000_000


def test_the_config_is_that_of_the_engines() -> None:
    """SGLang's config.json was not recorded with its run; its own figures must agree with the one given.

    SGLang 0.5.23 reports its pool in GiB with one padding page (of one token here) included.
    """
    config = load("sglang").header.config
    assert config is not None
    # K and V x KV heads x head_dim x layers x 2 bytes of bf16
    by_config = 2 * config["num_key_value_heads"] * config["head_dim"] * config["num_hidden_layers"] * 2
    page = load("sglang").frames[-1].page_text
    pool_bytes = sample(page, "sglang:kv_cache_memory_usage_gb") * 2**30
    by_engine = pool_bytes / (sample(page, "sglang:max_total_num_tokens") + 1)
    assert by_config == 1024
    assert round(by_engine, 6) == 1024
    assert config["max_position_embeddings"] == sample(page, "sglang:context_len")


def test_vllm_pool_agrees_with_its_config() -> None:
    """vLLM was given 9,830,400 bytes: 300 blocks x 32 tokens x 1,024 bytes."""
    run = load("vllm")
    cache = run.endpoints["/server_info"]["vllm_config"]["cache_config"]
    config = run.header.config
    assert config is not None
    token_bytes = 2 * config["num_key_value_heads"] * config["head_dim"] * config["num_hidden_layers"] * 2
    assert cache["kv_cache_memory_bytes"] == cache["num_gpu_blocks"] * cache["block_size"] * token_bytes
    page = run.frames[0].page_text
    assert sample(page, "vllm:cache_config_info", num_gpu_blocks="300", block_size="32") == 1.0
