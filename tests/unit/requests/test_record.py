"""What makes a record, and what is refused: one impossible value must not reach a histogram."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source, make_record

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {
    "request_id": "r1",
    "prompt_tokens": 100,
    "output_tokens": 11,
    "finished_at_seconds": NOW - 1,
    "ttft_seconds": 0.3,
    "prefill_seconds": 0.2,
    "decode_seconds": 0.5,
    "queue_seconds": 0.1,
    "e2e_seconds": 0.8,
    "cached_tokens": 64,
    "preemptions": 1,
}


def made(**changed: Any) -> RequestRecord | RejectedRecord:
    return make_record(source=Source.LOG, now_seconds=NOW, **{**GOOD, **changed})


def record(**changed: Any) -> RequestRecord:
    one = made(**changed)
    assert isinstance(one, RequestRecord), one
    return one


def test_figures_of_a_request() -> None:
    """By hand: 10 gaps in 0.5 s; 100 tokens for 0.2 s, then 100..110 (mean 105) for 0.5 s = 72.5."""
    one = record()
    assert one.context_tokens == 111
    assert one.itl_seconds == pytest.approx(0.05)
    assert one.held_token_seconds == pytest.approx(100 * 0.2 + 105 * 0.5)


def test_one_output_token_has_no_gap() -> None:
    """No ITL, but the request and what it held still count."""
    one = record(output_tokens=1, decode_seconds=0.0)
    assert one.itl_seconds is None
    assert one.held_token_seconds == pytest.approx(20.0)


def test_no_output_at_all_is_a_request_without_gap() -> None:
    """An embedding, or a request cut off after its prefill."""
    assert record(output_tokens=0, decode_seconds=None, e2e_seconds=None).itl_seconds is None


def test_decode_is_what_the_first_token_leaves() -> None:
    """Sources without a decode time tell the whole and the first token."""
    assert record(decode_seconds=None).itl_seconds == pytest.approx((0.8 - 0.3) / 10)


def test_unknown_stays_unknown() -> None:
    """Nothing is filled in with zeros."""
    bare = make_record(
        source=Source.LOG, now_seconds=NOW, prompt_tokens=5, output_tokens=5, finished_at_seconds=NOW
    )
    assert isinstance(bare, RequestRecord)
    assert (bare.ttft_seconds, bare.itl_seconds, bare.held_token_seconds) == (None, None, None)
    assert (bare.cached_tokens, bare.preemptions) == (None, None)


def test_cached_tokens_never_exceed_the_prompt() -> None:
    """A request that was retracted finds its own prompt again: more hits than prompt tokens."""
    assert record(cached_tokens=180).cached_tokens == 100


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"prompt_tokens": 0}, Drop.TOKENS_OUT_OF_RANGE),
        ({"prompt_tokens": 10**9}, Drop.TOKENS_OUT_OF_RANGE),
        ({"output_tokens": 10**9}, Drop.TOKENS_OUT_OF_RANGE),
        ({"output_tokens": -1}, Drop.TOKENS_OUT_OF_RANGE),
        ({"prompt_tokens": 1.5}, Drop.TOKENS_OUT_OF_RANGE),
        ({"prompt_tokens": 10**400}, Drop.TOKENS_OUT_OF_RANGE),
        ({"prompt_tokens": math.nan}, Drop.TOKENS_OUT_OF_RANGE),
        ({"prompt_tokens": None}, Drop.MISSING_FIELD),
        ({"output_tokens": "11"}, Drop.MISSING_FIELD),
        ({"output_tokens": True}, Drop.MISSING_FIELD),
        ({"finished_at_seconds": None}, Drop.MISSING_FIELD),
        ({"finished_at_seconds": 0}, Drop.TIME_OUT_OF_RANGE),
        ({"finished_at_seconds": NOW + 3600}, Drop.IN_FUTURE),
        ({"decode_seconds": -0.001}, Drop.TIME_OUT_OF_RANGE),
        ({"ttft_seconds": math.inf}, Drop.TIME_OUT_OF_RANGE),
        ({"queue_seconds": -1e9}, Drop.TIME_OUT_OF_RANGE),
        ({"e2e_seconds": 1e9}, Drop.TIME_OUT_OF_RANGE),
        ({"cached_tokens": -5}, Drop.TOKENS_OUT_OF_RANGE),
        ({"preemptions": -1}, Drop.TOKENS_OUT_OF_RANGE),
    ],
)
def test_impossible_values_are_refused_with_their_reason(changed: dict[str, Any], reason: Drop) -> None:
    """A bounded word each, for the label."""
    one = made(**changed)
    assert isinstance(one, RejectedRecord)
    assert one.reason is reason


def test_a_clock_a_little_ahead_is_forgiven() -> None:
    """The engine may run on another machine."""
    assert isinstance(made(finished_at_seconds=NOW + 60), RequestRecord)


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers())
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), ANYTHING))
def test_whatever_is_sent_ends_in_a_sane_record_or_a_reason(changed: dict[str, Any]) -> None:
    """No exception, and no figure that could poison a sum."""
    one = made(**changed)
    if isinstance(one, RequestRecord):
        for figure in (one.itl_seconds, one.ttft_seconds, one.held_token_seconds):
            assert figure is None or (math.isfinite(figure) and figure >= 0)
        assert one.prompt_tokens >= 1
        assert one.cached_tokens is None or one.cached_tokens <= one.prompt_tokens
