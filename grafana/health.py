"""The exporter itself: does it read its engines, and what does it drop?"""

from __future__ import annotations

from typing import Any, Final

from exporter import catalogue as c
from grafana import panels as p
from grafana import queries as q
from grafana.board import board
from grafana.common import LIMITS, state, why_empty

UID: Final = "kvcache-exporter"


def _reading() -> list[p.AnyPanel]:
    seen = q.recorded("kvcache:exporter:seen", ())
    up = f"up{q.chosen(())} and on (job, instance) {seen}"
    return [
        p.number(
            "Exporters scraped",
            "Scrape targets that are exporters of ours and answer. Red: one does not; is its pod running?",
            "none",
            (f"sum({up})", "answer"),
            (f"count(({up}) == 0) or sum({up}) * 0", "do not"),
            size=(8, 6),
        ),
        p.number(
            "Engines without config.json",
            "Their byte figures are missing. Mount the model's directory, or pass --model-config.",
            "none",
            (
                f"count({q.of(c.CONFIG_LOADED)} == 0) or count({q.of(c.ENGINE_UP)}) * 0",
                "engines",
            ),
            steps=p.above(1, p.GREEN, p.YELLOW),
            size=(8, 6),
        ),
        p.rows(
            "Exporter releases",
            "More than one row: a rollout under way.",
            {"version": "Version"},
            [p.Column("Exporters", f"count by (version) ({q.of(c.BUILD_INFO)})")],
            sort="Version",
            size=(8, 6),
        ),
        p.lines(
            "Fetch time",
            "How long the engine's page took, the five slowest. Above a second the engine's own event loop "
            "is busy; polls are then stretched so that they cost it at most 1 % of its time.",
            "s",
            (f"topk(5, max by ({q.REPLICA}) ({q.of(c.FETCH_SECONDS)}))", q.REPLICA_LEGEND),
            size=(8, 8),
        ),
        p.lines(
            "Failed polls by reason",
            "connection_refused: the engine is not up. http_404: SGLang needs --enable-metrics. timeout: it "
            "is overloaded. no_engine_families: that port is not an engine's.",
            "cps",
            (f"{q.per_second(c.ERRORS, by='reason')} > 0", "{{reason}}"),
            empty="no poll failed",
            size=(8, 8),
        ),
        p.lines(
            "Age of the last readout",
            "Oldest five. More than a few polls: figures on the boards are that old; after 30 s they vanish "
            "and the engine counts as down.",
            "s",
            (f"topk(5, max by ({q.REPLICA}) ({q.of(c.READOUT_AGE)}))", q.REPLICA_LEGEND),
            size=(8, 8),
        ),
        p.lines(
            "Poll interval",
            "Longest five. Longer than the setting: the engine renders its page slowly.",
            "s",
            (f"topk(5, max by ({q.REPLICA}) ({q.of(c.POLL_INTERVAL)}))", q.REPLICA_LEGEND),
            size=(8, 8),
        ),
        p.lines(
            "Samples that were unusable",
            "Lines of the engine's page that were dropped, by reason. Should be 0; else a new release, or a "
            "proxy that damages the page.",
            "cps",
            (f"{q.per_second(c.DROPPED, by='reason')} > 0", "{{reason}}"),
            empty="none was dropped",
            size=(8, 8),
        ),
        p.lines(
            "Missing series by reason",
            "How many series can't be given. A step up after a rollout: the new release tells less, or the "
            "config is not found any more.",
            "short",
            (f"count by (reason) ({q.of(c.UNAVAILABLE)})", "{{reason}}"),
            stacked=True,
            empty="nothing is missing",
            size=(8, 8),
        ),
    ]


def _records() -> list[p.AnyPanel]:
    return [
        p.lines(
            "Finished requests received",
            "Reports by source: trace, log, plugin, probe. None while there is traffic: the engine's flags "
            "or the receiver's address are not right.",
            "reqps",
            (q.per_second(c.RECORDS_RECEIVED, by="source"), "{{source}}"),
            empty="no source of finished requests is set up",
            size=(8, 8),
        ),
        p.lines(
            "Reports dropped",
            "Not counted, by reason. lesser_source is right: a better one reports the same requests.",
            "reqps",
            (f"{q.per_second(c.RECORDS_DROPPED, by='source, reason')} > 0", "{{source}}: {{reason}}"),
            (f"{q.per_second(c.RECORDS_DUPLICATE, by='source')} > 0", "{{source}}: duplicate"),
            empty="none was dropped",
            size=(8, 8),
        ),
        p.lines(
            "Bodies refused by the receivers",
            "peer_not_loopback: senders on other hosts need --traces-from any. busy: more than fits at once.",
            "reqps",
            (f"{q.per_second(c.BODIES_REFUSED, by='reason')} > 0", "{{reason}}"),
            empty="none was refused",
            size=(8, 8),
        ),
        p.lines(
            "Traces passed on",
            "To --forward-traces: sent, and dropped by reason. Dropped: the collector is slow or refuses "
            "them.",
            "reqps",
            (q.per_second(c.FORWARDED, by="job"), "sent"),
            (q.per_second(c.FORWARD_DROPPED, by="reason"), "dropped: {{reason}}"),
            empty="--forward-traces is not set",
            size=(8, 8),
        ),
        p.lines(
            "Probes",
            "Requests of our own (--probe-interval), and those that failed.",
            "reqps",
            (f"sum(rate({q.of(c.PROBES)}[$__rate_interval]))", "sent"),
            (f"sum(rate({q.of(c.PROBES_FAILED)}[$__rate_interval]))", "failed"),
            empty="--probe-interval is not set",
            size=(8, 8),
        ),
        p.lines(
            "Gaps that no tier got",
            "Gaps between tokens that the estimate from scrapes could not give to a context tier. Many of "
            "them: the estimate is worth little; report finished requests instead.",
            "cps",
            (f"sum(rate({q.of(c.ITL_WINDOW_UNATTRIBUTED)}[$__rate_interval]))", "gaps"),
            empty="finished requests are reported, or the engine does not tell its gaps",
            size=(8, 8),
        ),
    ]


def made() -> dict[str, Any]:
    """The board."""
    mended = LIMITS["input_missing"]["for"]
    return board(
        UID,
        "KV cache: exporter",
        "Does the exporter read its engines, what is missing and why, and what becomes of finished requests? "
        f"Series that are missing for a reason that can be mended raise an alert after {mended}.",
        [
            ("Reading the engines", [state(), *_reading()]),
            ("Finished requests", _records()),
            ("What is missing", [why_empty()]),
        ],
        since="now-3h",
    )
