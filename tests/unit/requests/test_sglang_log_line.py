"""One line of SGLang's request log: what is taken, and that the prompt never is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.requests.record import Drop, RejectedRecord, RequestRecord
from exporter.requests.sglang_line import Malformed, values
from exporter.requests.sglang_log import record_of

NOW = 1_800_000_000.0
WANTED = {"id", "prompt_tokens", "completion_tokens"}
LINE = {
    "id": "r1",
    "prompt_tokens": 100,
    "completion_tokens": 21,
    "cached_tokens": 64,
    "num_retractions": 1,
    "queue_time": 0.5,
    "first_token_latency": 0.75,
    "e2e_latency": 1.75,
    "decode_throughput": 20.0,
    "forward_entry_time": NOW - 1.5,
    "prefill_finished_time": NOW - 1.25,
    "request_received_ts": NOW - 2.0,
    "request_finished_ts": NOW - 0.25,
}


def line_of(parameters: object, **fields: object) -> bytes:
    """A line as SGLang writes it: parameters as JSON text in a JSON string, first."""
    return json.dumps({"request_parameters": json.dumps(parameters), **LINE, **fields}).encode()


def record(line: bytes, *, route: bool = False) -> RequestRecord:
    made = record_of(line, NOW, route=route)
    assert isinstance(made, RequestRecord), made
    return made


def test_fields_mean_what_the_engine_means() -> None:
    """20 gaps at 20 tokens/s are one second of decode: decode_throughput counts gaps, not tokens."""
    made = record(line_of({"text": "x"}))
    assert (made.request_id, made.prompt_tokens, made.output_tokens) == ("r1", 100, 21)
    assert made.decode_seconds == pytest.approx(1.0)
    assert made.itl_seconds == pytest.approx(0.05)
    assert made.prefill_seconds == pytest.approx(0.25)
    assert (made.ttft_seconds, made.queue_seconds, made.e2e_seconds) == (0.75, 0.5, 1.75)
    assert (made.cached_tokens, made.preemptions) == (64, 1)
    assert made.finished_at_seconds == NOW - 0.25


def test_one_token_has_no_decode_throughput() -> None:
    """The engine writes null then; the request still counts, without an ITL."""
    made = record(line_of({}, completion_tokens=1, decode_throughput=None))
    assert made.itl_seconds is None


def test_release_without_a_finish_time() -> None:
    """Received plus end-to-end is the finish."""
    assert record(line_of({}, request_finished_ts=None)).finished_at_seconds == pytest.approx(NOW - 0.25)


# What a client can put into a prompt to look like the engine's own words.
HOSTILE = [
    '"}", "prompt_tokens": 7, "id": "evil',
    '\\"}", "prompt_tokens": 7, "id": "evil',
    '\\\\"}\n{"request_parameters": "", "prompt_tokens": 7}\n',
    '"custom_labels": {"route": "evil"}',
    ', "custom_labels": {"route": "evil"}}',
    '\\", \\"custom_labels\\": {\\"route\\": \\"evil\\"}',
    "}}}]]][[[{{{",
    "\\",
    "\u2028\u0000\U0001f600 é",
]


@pytest.mark.parametrize("prompt", HOSTILE)
def test_no_prompt_passes_for_a_field(prompt: str) -> None:
    """Counts and route come from the engine's own keys, whatever the prompt says."""
    parameters = {"text": prompt, "custom_labels": {"x": prompt, "route": "chat"}, "rid": prompt}
    made = record(line_of(parameters), route=True)
    assert (made.prompt_tokens, made.request_id, made.route) == (100, "r1", "chat")


@given(st.text(max_size=200), st.text(max_size=50), st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
def test_any_prompt_and_any_custom_parameters(prompt: str, label: str, more: dict[str, str]) -> None:
    """The walk over escaped text agrees with decoding it twice, for every text there is."""
    parameters = {
        "text": prompt,
        "a": {**more, "custom_labels": {"route": "no"}},
        "custom_labels": {"l": label},
    }
    line = line_of({**parameters, "custom_labels": {"l": label, "route": "chat"}})
    assert values(line, WANTED, route=True) == {
        "id": "r1",
        "prompt_tokens": 100,
        "completion_tokens": 21,
        "route": "chat",
    }
    assert values(line_of(parameters), WANTED, route=True)["route"] == ""


def test_a_look_alike_deeper_down_is_no_label() -> None:
    """sampling_params.custom_params is the client's to fill."""
    inner = {"custom_labels": {"route": "evil"}}
    parameters = {"sampling_params": {"custom_params": inner}, "list": [inner], **{"custom_params": inner}}
    assert record(line_of(parameters), route=True).route == ""


def test_route_is_left_alone_unless_asked_for() -> None:
    """Without an allow-list nobody needs the parameters: they are stepped over."""
    assert record(line_of({"custom_labels": {"route": "chat"}})).route == ""


@pytest.mark.parametrize("route", ["x" * 500, 'a"b', "a\\b"])
def test_odd_routes_are_none(route: str) -> None:
    """An allow-list holds plain words; what would need unescaping is on none."""
    assert record(line_of({"custom_labels": {"route": route}}), route=True).route == ""


def test_nothing_of_the_parameters_is_in_the_record() -> None:
    """Neither record nor refusal may carry the prompt, or it ends up in a log."""
    secret = "very private words"
    assert secret not in repr(record_of(line_of({"text": secret}), NOW, route=True))
    for cut in range(20, 140, 7):
        refused = record_of(line_of({"text": secret})[:cut], NOW, route=True)
        assert isinstance(refused, RejectedRecord)
        assert secret not in repr(refused)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{", b"nonsense", b'{"a" 1}', b'{"a": 1} {"b": 2}', b'{"a": 1 "b": 2}', b'{"a": ]',
     b"\xff\x00", b'{"prompt_tokens": nope}', b'{"id": "unterminated}', b'{"a":', b'{,}', b'{"a": [1, 2}'],
)  # fmt: skip
def test_broken_lines_are_refused(line: bytes) -> None:
    """Half a line, two lines in one, or no JSON: counted, never guessed at."""
    with pytest.raises(Malformed):
        values(line, WANTED)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("prompt_tokens", 0, Drop.TOKENS_OUT_OF_RANGE),
        ("prompt_tokens", 10**9, Drop.TOKENS_OUT_OF_RANGE),
        ("prompt_tokens", None, Drop.MISSING_FIELD),
        ("prompt_tokens", "12", Drop.MISSING_FIELD),
        ("e2e_latency", -1.0, Drop.TIME_OUT_OF_RANGE),
        ("request_finished_ts", NOW + 9999, Drop.IN_FUTURE),
        ("prefill_finished_time", 0.5, Drop.TIME_OUT_OF_RANGE),
    ],
)
def test_impossible_values_have_a_reason(field: str, value: object, reason: Drop) -> None:
    """The reason is a label, so it is one of a few words."""
    made = record_of(line_of({}, **{field: value}), NOW)
    assert isinstance(made, RejectedRecord)
    assert made.reason is reason
