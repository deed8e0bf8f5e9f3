"""Windows and floors of one target -> metric families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from exporter import catalogue as c
from exporter.collect_records import Adder
from exporter.decode import DecodeWatch, rank_of, shown
from exporter.derive.readout import Readout
from exporter.kvmath.known import Reason, Unavailable, known


def _longest_tier(decode: DecodeWatch, readout: Readout) -> float:
    longest = readout.inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    return float(decode.tiers.label_of(longest)) if known(longest) else float("inf")


def add_decode(
    decode: DecodeWatch,
    readouts: Sequence[Readout],
    labels_of: Callable[[Readout], Mapping[str, str]],
    out: Adder,
    *,
    window: bool,
) -> None:
    """Add what there is for each rank; ``window`` is off where finished requests tell more."""
    for readout in readouts:
        labels = labels_of(readout)

        def absent(metric: c.Metric, why: Unavailable, labels: Mapping[str, str] = labels) -> None:
            out.add(c.UNAVAILABLE, 1, {**labels, "signal": metric.signal, "reason": why.reason})

        mine = decode.windows.get(rank_of(readout))
        no_context = readout.missing.get(c.USED_TOKENS)
        if window and no_context is not None:
            absent(c.ITL_WINDOW_SECONDS, no_context)  # no live context, so no tier
        elif window and mine is not None:
            reach = _longest_tier(decode, readout)
            for tier, gaps in mine.tiers_seen():
                if not gaps.count and float(tier) > reach:
                    continue  # a tier beyond what the engine serves stays empty for ever
                named = {**labels, "context": tier}
                for le, count in mine.cumulative(gaps):
                    out.add(c.ITL_WINDOW_SECONDS, count, {**named, "le": le}, "_bucket")
                out.add(c.ITL_WINDOW_SECONDS, gaps.count, named, "_count")
                out.add(c.ITL_WINDOW_SECONDS, gaps.sum_seconds, named, "_sum")
            if not mine.bounds and not known(readout.sample.itl) and not readout.sample.whole_server:
                absent(c.ITL_WINDOW_SECONDS, readout.sample.itl)
        if window and mine is not None and mine.bounds:
            out.add(c.ITL_WINDOW_UNATTRIBUTED, mine.unattributed, labels)
        floor = decode.floors.get(rank_of(readout))
        if floor is None or not shown(floor.seconds):
            continue
        for metric, value in ((c.DECODE_FLOOR_SECONDS, floor.seconds), (c.ITL_FLOOR_RATIO, floor.ratio)):
            if known(value):
                out.add(metric, value, labels)
            else:
                absent(metric, value)
