"""Which lines of a page are read, and what happens to broken ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.engines import detect, exposition
from exporter.engines.exposition import MAX_LABEL_CHARS, MAX_LINE_CHARS, MAX_SAMPLES, Dropped, read_page
from exporter.engines.vllm import VOCABULARY

from .pages import config_info, line, page

GOOD = line("vllm:num_requests_running", 3, model_name="m")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ('vllm:kv_cache_usage_perc{model_name="m"', Dropped.MALFORMED),
        ('vllm:kv_cache_usage_perc{model_name="m"} ', Dropped.MALFORMED),
        ('vllm:kv_cache_usage_perc{model_name="m"} full', Dropped.MALFORMED),
        ("vllm:kv_cache_usage_perc{model_name=m} 1", Dropped.MALFORMED),
        ('vllm:kv_cache_usage_perc{model_name="m"} NaN', Dropped.NOT_FINITE),
        ('vllm:kv_cache_usage_perc{model_name="m"} +Inf', Dropped.NOT_FINITE),
        ('vllm:kv_cache_usage_perc{model_name="m"} -0.5', Dropped.NEGATIVE),
        (GOOD, Dropped.DUPLICATE),
        (line("vllm:kv_cache_usage_perc", 1, model_name="m" * MAX_LINE_CHARS), Dropped.TOO_LONG),
        (line("vllm:kv_cache_usage_perc", 1, model_name="m" * (MAX_LABEL_CHARS + 1)), Dropped.TOO_LONG),
    ],
)
def test_a_bad_line_costs_only_itself(bad: str, why: Dropped) -> None:
    """It is counted by its reason, and the good line beside it is still read."""
    got = page(GOOD, bad)
    assert got.dropped == {why: 1}
    assert [s.value for s in got.get("num_requests_running")] == [3]
    assert not got.get("kv_cache_usage_perc")


def test_the_first_of_two_equal_series_stays() -> None:
    """Two values for one series: the later one is dropped, whatever the order of its labels."""
    got = page(
        'vllm:num_requests_running{model_name="m",engine="0"} 3',
        'vllm:num_requests_running{engine="0",model_name="m"} 4',
    )
    assert [s.value for s in got.get("num_requests_running")] == [3]
    assert got.dropped == {Dropped.DUPLICATE: 1}


def test_both_spellings_of_a_counter_count_once() -> None:
    """A page that lists x and x_total (a client's legacy and new form)."""
    got = page(
        line("vllm:num_preemptions", 5, model_name="m"), line("vllm:num_preemptions_total", 5, model_name="m")
    )
    assert [s.value for s in got.get("num_preemptions")] == [5]


def test_neighbours_are_not_read() -> None:
    """Names that only begin like ours, comments, and TYPE words the parser does not know."""
    got = page(
        "# TYPE vllm:num_requests_running sometype",
        "# HELP vllm:num_requests_running -",
        GOOD,
        line("vllm:num_requests_running_created", 1.7e9, model_name="m"),
        line("vllm:num_requests_waiting_by_reason", 7, model_name="m", reason="capacity"),
        line("other:num_requests_running", 9),
        "# EOF",
    )
    assert set(got.families) == {"num_requests_running"}
    assert [s.value for s in got.get("num_requests_running")] == [3]
    assert not got.dropped


def test_label_values_with_everything_in_them() -> None:
    """Quotes, braces, commas and spaces inside a value; timestamps behind it; Windows line ends."""
    got = page(
        'vllm:num_requests_running{model_name="a\\"b} c,d=\\\\"} 3 1795987737000',
        'vllm:num_requests_waiting{model_name="é"} 4\r',
    )
    assert [dict(s.labels) for s in got.get("num_requests_running")] == [{"model_name": 'a"b} c,d=\\'}]
    assert [s.value for s in got.get("num_requests_waiting")] == [4]


def test_one_long_setting_costs_no_other() -> None:
    """The info metric carries every setting: a long one among them must not take the block count away."""
    info = config_info(num_gpu_blocks="300", odd="x" * (MAX_LABEL_CHARS + 1))
    got = page(info)
    assert [s.labels["num_gpu_blocks"] for s in got.get("cache_config_info")] == ["300"]
    assert "odd" not in got.get("cache_config_info")[0].labels
    assert not got.dropped


def test_too_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser goes character by character, so lines of interest have a budget together."""
    monkeypatch.setattr(exposition, "MAX_CHOSEN_CHARS", 2 * len(GOOD) + 10)
    many = [line("vllm:num_requests_running", 1, model_name=str(n)) for n in range(4)]
    got = page(*many)
    assert [s.labels["model_name"] for s in got.get("num_requests_running")] == ["0", "1"]
    assert got.dropped == {Dropped.TOO_MANY: 2}


def test_too_many_series() -> None:
    """A page with endless series is cut, not followed."""
    lines = [line("vllm:num_requests_running", 1, model_name=f"m{n}") for n in range(MAX_SAMPLES + 5)]
    got = read_page("\n".join(lines), (VOCABULARY,))
    assert len(got.get("num_requests_running")) == MAX_SAMPLES
    assert got.dropped == {Dropped.TOO_MANY: 5}


@given(st.text(max_size=200), st.sampled_from(["vllm:kv_cache_usage_perc", "sglang:token_usage", ""]))
def test_no_text_is_too_strange(text: str, name: str) -> None:
    """Whatever an endpoint sends, reading it never raises and never gives a NaN."""
    got = detect.read(f"{name}{text}\n{text}\n{name}{{{text}}} 1\n")
    for found in got.families.values():
        assert all(s.value >= 0 and s.value != float("inf") for s in found)
    detect.samples(got)


def test_detection_of_mixed_pages() -> None:
    """A page with both engines' families belongs to the one with more of them; a tie is vLLM's."""
    one = line("sglang:token_usage", 0.1, model_name="s")
    assert page(GOOD, one).software == "vllm"
    assert page(GOOD, one, line("sglang:num_running_reqs", 2, model_name="s")).software == "sglang"
    # Process metrics and a router's own families beside them change nothing.
    assert (
        page("process_cpu_seconds_total 1", line("router:num_requests_running", 3), one).software == "sglang"
    )


def test_bare_names_alone_are_no_engine() -> None:
    """prompt_tokens_total may be anybody's; only a KV usage gauge makes a bare page an engine's."""
    generic = [line("prompt_tokens_total", 5, model_name="m"), line("num_requests_running", 3)]
    assert page(*generic).software == ""
    assert detect.samples(page(*generic)) == ()
    assert page(*generic, line("gpu_cache_usage_perc", 0.5)).software == "vllm"


def test_prefixed_names_win_over_bare_ones() -> None:
    """Where vllm: names are, bare ones on the same page are someone else's."""
    got = page(GOOD, line("gpu_cache_usage_perc", 0.9), line("num_requests_running", 77))
    assert [s.value for s in got.get("num_requests_running")] == [3]
    assert not got.get("gpu_cache_usage_perc")


def test_nothing_to_read() -> None:
    """Empty and foreign pages have no software and no samples."""
    for text in ("", "\n\n", "<html></html>", '{"detail": "Not Found"}'):
        assert detect.read(text).software == ""


def test_config_alone_is_an_engine() -> None:
    """cache_config_info before any gauge has a sample (two API servers, 0.32.0)."""
    assert page(config_info(engine="0")).software == "vllm"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.32.0", (0, 32, 0)),
        ("v0.9.2", (0, 9, 2)),
        ("0.9.2rc1+cu126", (0, 9, 2)),
        ("0.4.3.post4", (0, 4, 3)),
        ("0.32.0+cpu", (0, 32, 0)),
        # A development build of no release, a branch name, nothing.
        ("0.1.dev1+g0123abc", None),
        ("main", None),
        ("", None),
        (None, None),
        ("0.9", None),
        ("1.2.99999", None),
        (" 0.32.0", None),
    ],
)
def test_versions(text: str | None, expected: tuple[int, ...] | None) -> None:
    """Only a release orders against releases."""
    assert detect.parse_version(text) == expected


def test_a_cached_label_set_does_not_freeze_the_value() -> None:
    """Label sets are kept from page to page; values must come from the page at hand."""
    assert (
        detect.read('vllm:kv_cache_usage_perc{model_name="m"} 0.25').get("kv_cache_usage_perc")[0].value
        == 0.25
    )
    assert (
        detect.read('vllm:kv_cache_usage_perc{model_name="m"} 0.5').get("kv_cache_usage_perc")[0].value == 0.5
    )


@pytest.mark.parametrize(
    ("tail", "value"),
    [("0.5", 0.5), (" 0.5 ", 0.5), ("0.5 1700000000000", 0.5), ("5e-1", 0.5), ("\t0.5\r", 0.5)],
)
def test_what_stands_behind_the_labels(tail: str, value: float) -> None:
    """A time stamp, white space and exponents are in the format; the value is the first word."""
    page = detect.read('vllm:kv_cache_usage_perc{model_name="a} b",engine="0"} ' + tail)
    (sample,) = page.get("kv_cache_usage_perc")
    assert (sample.value, sample.labels["model_name"]) == (value, "a} b")


@pytest.mark.parametrize("tail", ["", "0.5 1 2", "1_000", "0.5}", "half"])
def test_a_line_without_a_value_is_malformed(tail: str) -> None:
    """Python reads 1_000 as a number, the exposition format does not."""
    page = detect.read('vllm:kv_cache_usage_perc{model_name="m"} ' + tail)
    assert page.get("kv_cache_usage_perc") == ()
    assert page.dropped[Dropped.MALFORMED] == 1
