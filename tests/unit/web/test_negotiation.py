"""Formats and encodings, by what clients really send and by what they should not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request

from exporter.web.negotiation import exposition_type, takes_gzip

CLASSIC, OPENMETRICS = "text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"
# Prometheus 3.0, as its documentation of content negotiation has it.
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", CLASSIC),
        ("*/*", CLASSIC),
        ("text/html,application/xhtml+xml,*/*;q=0.8", CLASSIC),
        (PROMETHEUS_3, f"{OPENMETRICS};escaping=allow-utf-8"),
        ("text/plain;version=1.0.0;escaping=dots", "text/plain;version=1.0.0;escaping=dots"),
        ("text/plain;version=1.0.0;escaping=new", "text/plain;version=1.0.0"),
        ("application/openmetrics-text", OPENMETRICS),
        # The order of wishes is told by q, not by place.
        (f"{OPENMETRICS};q=0.1,{CLASSIC};q=0.9", CLASSIC),
        (f"{OPENMETRICS};q=0,{CLASSIC};q=0.1", CLASSIC),
        (f"{CLASSIC};q=0.2,{OPENMETRICS}", OPENMETRICS),
        # What is not spoken is passed over, and nothing of it comes back.
        ("application/openmetrics-text;version=9.9.9", CLASSIC),
        ("application/openmetrics-text;version=0.0.1", CLASSIC),
        ('application/openmetrics-text;version="1.0.0\\r\\nX: y"', CLASSIC),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily", CLASSIC),
        (f"{OPENMETRICS};q=high", CLASSIC),
    ],
)
def test_formats(accept: str, expected: str) -> None:
    """The best of what both speak."""
    assert exposition_type(accept) == expected


@given(st.text())
def test_any_header_gives_one_of_few_formats(accept: str) -> None:
    """Whatever is sent, pages differ in no more ways than these, and the encoder knows each."""
    told = exposition_type(accept)
    assert told.partition(";")[0] in ("text/plain", "application/openmetrics-text")
    assert len(told) < 80
    choose_encoder(told)


@pytest.mark.parametrize(
    ("header", "expected"),
    [("", False), ("gzip", True), ("GZIP;q=0.5, br", True), ("gzip;q=0", False), ("br, identity", False),
     ("*", True)],
)  # fmt: skip
def test_gzip(header: str, expected: bool) -> None:
    """Only when asked for."""
    scope = {"type": "http", "headers": [(b"accept-encoding", header.encode())]}
    assert takes_gzip(Request(scope)) is expected
