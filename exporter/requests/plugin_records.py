"""What :mod:`exporter.requests.vllm_plugin` sends -> records.  The exporter's side of the wire."""

from __future__ import annotations

import json
from dataclasses import dataclass

from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source, make_record
from exporter.requests.sink import RecordSink
from exporter.requests.vllm_plugin import BATCH_RECORDS, CONTENT_TYPE, WIRE_VERSION

__all__ = ["CONTENT_TYPE", "PluginBatch", "feed", "records_from_plugin"]

# A sender's batch and its dropped count; whatever comes beyond is no batch of ours.
MAX_LINES = 10 * BATCH_RECORDS
MAX_LINE_BYTES = 4096
_FIELDS = (
    "request_id",
    "prompt_tokens",
    "output_tokens",
    "finished_at_seconds",
    "ttft_seconds",
    "prefill_seconds",
    "decode_seconds",
    "queue_seconds",
    "e2e_seconds",
    "cached_tokens",
    "preemptions",
)


@dataclass(frozen=True, slots=True)
class PluginBatch:
    """One delivery: records with the key that tells repeats, refusals, and what the sender had to drop."""

    records: tuple[tuple[str, RequestRecord], ...]
    rejected: tuple[RejectedRecord, ...]
    dropped_by_sender: int = 0


def records_from_plugin(body: bytes, now_seconds: float) -> PluginBatch:
    """Decode a body of JSON lines; never raises, one bad line costs that line only.

    ``now_seconds``: Unix time, against which "finished in the future" is judged.
    """
    records: list[tuple[str, RequestRecord]] = []
    rejected: list[RejectedRecord] = []
    dropped = 0
    for number, line in enumerate(filter(None, map(bytes.strip, body.split(b"\n")))):
        if number >= MAX_LINES or len(line) > MAX_LINE_BYTES:
            rejected.append(RejectedRecord(Drop.TOO_LONG, "a line or a batch beyond its cap"))
            continue
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or said.get("v") != WIRE_VERSION:
            rejected.append(RejectedRecord(Drop.MALFORMED, "no JSON object of this version"))
            continue
        if "dropped" in said:
            count = said["dropped"]
            if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 10**9:
                dropped += count
            continue
        made = make_record(
            source=Source.PLUGIN,
            now_seconds=now_seconds,
            **{name: said.get(name) for name in _FIELDS},
        )
        if isinstance(made, RejectedRecord):
            rejected.append(made)
        else:
            key = said.get("key")
            records.append((key[:64] if isinstance(key, str) else "", made))
    return PluginBatch(tuple(records), tuple(rejected), dropped)


def feed(batch: PluginBatch, sink: RecordSink) -> int:
    """Hand a batch to its target's sink; how many records counted."""
    for rejected in batch.rejected:
        sink.reject(rejected, Source.PLUGIN)
    if batch.dropped_by_sender:
        sink.received[Source.PLUGIN] += batch.dropped_by_sender
        sink.dropped[Source.PLUGIN, Drop.SENDER_QUEUE] += batch.dropped_by_sender
    return sum(sink.accept(record, key or None) for key, record in batch.records)
