"""Decode as the scrape alone shows it: approximate ITL by context, and its distance from the floor."""

from __future__ import annotations

from exporter.catalogue.metric import Group, metric

ITL_WINDOW_SECONDS = metric(
    "histogram",
    "itl_window_seconds",
    Group.LATENCY,
    ("context",),
    "Approximate: gaps between tokens, on the engine's own buckets, in the tier of the mean live context of "
    "their poll interval. For targets without finished requests (trace, log, plugin); never add the two.",
    "engine, arithmetic",
)
ITL_WINDOW_UNATTRIBUTED = metric(
    "counter",
    "itl_window_unattributed_total",
    Group.LATENCY,
    (),
    "Gaps between tokens that itl_window_seconds gave to no tier: nothing ran at either poll, or the engine "
    "does not tell used tokens.",
    "engine",
)
DECODE_GAPS = metric(
    "counter",
    "decode_gaps_total",
    Group.LATENCY,
    (),
    "Gaps between tokens that the engine has timed, all contexts together: rises while anything decodes.",
    "engine",
)
DECODE_FLOOR_SECONDS = metric(
    "gauge",
    "decode_floor_seconds",
    Group.LATENCY,
    (),
    "Least time of one decode step: weights and live KV over the GPUs' memory bandwidth (--gpu-bandwidth). "
    "Too high for a mixture of experts, which reads only some of its weights.",
    "arithmetic",
)
ITL_FLOOR_RATIO = metric(
    "gauge",
    "itl_floor_ratio",
    Group.LATENCY,
    (),
    "Mean gap between tokens of the last poll interval over decode_floor_seconds; 1 is the memory's limit.",
    "engine, arithmetic",
)
