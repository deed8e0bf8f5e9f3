"""Panels that several boards have."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import statetimeline, table

from alerts.rules import thresholds
from exporter import catalogue as c
from exporter.fetch import Failure
from exporter.kvmath.known import Reason
from grafana import panels as p
from grafana import queries as q

LIMITS: Final = thresholds()

STATES: Final = {
    str(q.DOWN): ("down", p.RED),
    str(q.IDLE): ("idle: no traffic", p.BLUE),
    str(q.BUSY): ("busy", p.GREEN),
    str(q.NOT_TOLD): ("up, load not reported", p.PURPLE),
}
# Nothing runs, so there is nothing to tell.
_NO_TRAFFIC: Final = (Reason.NO_TRAFFIC, Reason.IDLE)


def _meaning(reason: Reason) -> tuple[str, str]:
    if reason in _NO_TRAFFIC:
        return "no traffic: it comes with the first requests", p.BLUE
    if reason is Reason.NOT_REPORTED:
        return "this engine, or its release, does not report it", p.PURPLE
    if reason in LIMITS["input_missing"]["reasons"].split("|"):
        return f"to mend: the exporter was not told, or can't use, {reason}", p.YELLOW
    return f"can't be known here: {reason}", p.GREY


MEANINGS: Final = {
    **{str(reason): _meaning(reason) for reason in Reason},
    **{str(why): (f"the engine is down: {why}", p.RED) for why in Failure},
}


def state() -> statetimeline.Panel:
    """Down, idle and not reported, told apart."""
    return p.states(
        "Engines: down, idle or busy",
        "Read this first: an idle engine has no latencies and no hit ratio, a down one has nothing at all, "
        "and one that does not report its load leaves panels empty for ever. Down: open the board “KV "
        "cache: exporter”.",
        STATES,
        (q.state(), q.REPLICA_LEGEND),
        empty="no exporter is scraped here: check the data source and the variables",
        size=(24, 7),
    )


def why_empty() -> table.Panel:
    """Why series are missing."""
    down, mend = f'signal="{c.ENGINE_UP.signal}"', f'reason=~"{LIMITS["input_missing"]["reasons"]}"'
    rest = (down.replace("=", "!="), mend.replace("=~", "!~"))
    # The worst comes first, and within that what is missing most often.
    counted = "\nor ".join(
        f"sort_desc(count by (signal, reason) ({q.of(c.UNAVAILABLE, *own)}))"
        for own in ((down,), (mend,), rest)
    )
    return p.rows(
        "Why is a panel empty?",
        "Every series that the exporter can't give, why, and for how many engines or ranks. First the "
        f"engines that are down ({c.ENGINE_UP.name}), then what is worth mending: `/explain` of the exporter "
        "names the input that is missing.",
        {"signal": "Missing series", "reason": "Reason", "means": "Meaning"},
        [p.Column("Engines", f'label_replace({counted}, "means", "$1", "reason", "(.*)")')],
        sort=None,
        texts={"Meaning": MEANINGS},
        empty="nothing is missing",
        size=(24, 9),
    )
