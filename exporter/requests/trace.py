"""Request spans -> records."""

from __future__ import annotations

from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source, make_record
from exporter.requests.spans import BadSpan, RequestSpan


def to_record(span: RequestSpan | BadSpan, now_seconds: float) -> RequestRecord | RejectedRecord:
    """The record of one request span; ``now_seconds``: Unix time, to tell a span from the future."""
    if isinstance(span, BadSpan):
        return RejectedRecord(Drop.TOO_LONG if span.too_long else Drop.MALFORMED, span.detail)
    said = span.attributes.get
    return make_record(
        source=Source.TRACE,
        now_seconds=now_seconds,
        request_id=said("gen_ai.request.id"),
        prompt_tokens=said("gen_ai.usage.prompt_tokens"),
        output_tokens=said("gen_ai.usage.completion_tokens"),
        cached_tokens=said("gen_ai.usage.cached_tokens"),
        # 0 is "not set" on the wire.
        finished_at_seconds=span.end_unix_nanoseconds / 1e9 if span.end_unix_nanoseconds else None,
        ttft_seconds=said("gen_ai.latency.time_to_first_token"),
        e2e_seconds=said("gen_ai.latency.e2e"),
        queue_seconds=said("gen_ai.latency.time_in_queue"),
        prefill_seconds=said("gen_ai.latency.time_in_model_prefill"),
        decode_seconds=said("gen_ai.latency.time_in_model_decode"),
    )
