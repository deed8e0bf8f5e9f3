"""PromQL of the boards: series that exist, chosen by the boards' variables.

Names of exported series come from the catalogue and names of recorded ones from the alert rules' source, so
that a series that is no longer made breaks the build of the boards.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from alerts.rules import groups
from exporter import catalogue as c
from exporter.catalogue import Metric
from exporter.kvmath.known import Reason

# What a scrape adds. A plain Prometheus adds none of it; a matcher of ".*" takes what lacks the label.
SCRAPED: Final = ("cluster", "namespace", "pod")
# Label -> the variable that chooses its values.
VARIABLES: Final = {
    **{label: label for label in SCRAPED},
    "target": "target",
    "model_name": "model",
    "engine": "engine",
}
# Exported once for the whole process, whatever its targets.
OF_NO_TARGET: Final = frozenset(
    {c.BUILD_INFO, c.BODIES_RECEIVED, c.BODIES_REFUSED, c.FORWARDED, c.FORWARD_DROPPED}
)
# Told of a whole target, too, without model and rank: of an engine that is down nobody knows them.
OF_TARGETS_TOO: Final = frozenset({c.UNAVAILABLE})
_UNKNOWN_WHERE_DOWN: Final = ("model_name", "engine")
# Kinds of recording rules, by the labels that they keep beside the scrape's.
RANK: Final = ("target", "model_name", "engine")
REQUESTS: Final = ("target", "model_name")
MODEL: Final = ("model_name",)
# One replica: what a scrape and the exporter know it by, data-parallel ranks together. Without `instance`: a
# pod that comes back under another address is the same replica. Hosts without a pod need target names of
# their own, which `sharing()` watches over.
REPLICA: Final = "cluster, namespace, pod, target"
REPLICA_LEGEND: Final = "{{pod}} {{target}}"
BY_MODEL: Final = "cluster, namespace, model_name"
MODEL_LEGEND: Final = "{{model_name}} {{cluster}}"


class UnknownSeriesError(ValueError):
    """A board asks for a series that neither the exporter nor a recording rule makes."""


@cache
def recorded_names() -> frozenset[str]:
    """Every recording rule's name."""
    return frozenset(rule["record"] for group in groups() for rule in group["rules"] if "record" in rule)


@cache
def alert_names() -> frozenset[str]:
    """Every alert's name."""
    return frozenset(rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule)


def chosen(
    labels: tuple[str, ...], *own: str, but: tuple[str, ...] = (), or_lacking: tuple[str, ...] = ()
) -> str:
    """``{...}``: the variables' matchers on ``labels`` and the scrape's, then ``own`` ones.

    ``or_lacking``: labels that a series may lack and be chosen nevertheless.
    """
    names = [label for label in VARIABLES if (label in labels or label in SCRAPED) and label not in but]
    told = [f'{label}=~"${VARIABLES[label]}{"|" if label in or_lacking else ""}"' for label in names]
    return "{" + ", ".join([*told, *own]) + "}"


def of(metric: Metric, *own: str, suffix: str = "", but: tuple[str, ...] = ()) -> str:
    """The series of an exported metric that the variables choose.

    ``own``: matchers of the query's own; ``suffix``: of a histogram; ``but``: labels not to choose by.
    """
    if (metric.kind == "histogram") != (suffix in ("_bucket", "_count", "_sum")):
        raise UnknownSeriesError(f"{metric.name} is a {metric.kind}: suffix {suffix!r}")
    labels = () if metric in OF_NO_TARGET else metric.labels
    or_lacking = _UNKNOWN_WHERE_DOWN if metric in OF_TARGETS_TOO else ()
    return metric.name + suffix + chosen(labels, *own, but=but, or_lacking=or_lacking)


def recorded(name: str, labels: tuple[str, ...], *own: str, but: tuple[str, ...] = ()) -> str:
    """The same of a recording rule.  Raises UnknownSeriesError where there is no such rule."""
    if name not in recorded_names():
        raise UnknownSeriesError(f"no recording rule {name}")
    return name + chosen(labels, *own, but=but)


def firing(alert: str = "KVCache.*") -> str:
    """Alerts of ours that fire; ``alert``: a regular expression.

    Whatever is chosen, those that name no target, model or rank are among them: an exporter or an engine
    that is down.
    """
    own = (f'alertname=~"{alert}"', 'alertstate="firing"')
    return "ALERTS" + chosen(RANK, *own, or_lacking=RANK)


def soonest() -> str:
    """Seconds until an engine is full; what takes longer than four hours is no forecast but noise."""
    return f"{recorded('kvcache:time_to_full:seconds', RANK)} < {4 * 3600}"


def _ran_nothing() -> str:
    """Ranks that are up and ran no batch yet: SGLang tells what is used with the first one."""
    return of(c.UNAVAILABLE, f'signal="{c.USAGE_RATIO.signal}"', f'reason="{Reason.NO_TRAFFIC}"')


def used(metric: Metric, of_all: Metric) -> str:
    """What is in use of ``of_all``: ``metric``, and nothing where nothing ran yet.

    Not where it is missing for another reason: what nobody knows is not free.
    """
    return f"({of(metric)} or {of(of_all)} * 0 and ignoring (signal, reason) {_ran_nothing()})"


def free_sequences() -> str:
    """Sequences that fit now; where nothing ran yet, as many as into the empty pool."""
    empty = f"{of(c.MAX_SEQUENCES)} and ignoring (context, signal, reason) {_ran_nothing()}"
    return f"{of(c.FREE_SEQUENCES)} or {empty}"


def per_second(metric: Metric, *own: str, by: str, suffix: str = "") -> str:
    """A counter's rate, summed."""
    return f"sum by ({by}) (rate({of(metric, *own, suffix=suffix)}[$__rate_interval]))"


def up() -> str:
    """1 where a replica is up; of several that share a name, none may hide one that is down."""
    return f"min by ({REPLICA}) ({of(c.ENGINE_UP)})"


def sharing() -> str:
    """How many engines a replica's name stands for: 1, or their figures are mixed."""
    return f"count by ({REPLICA}) ({of(c.ENGINE_UP)})"


# Values of the state of a replica, and how they read.
DOWN, IDLE, BUSY, NOT_TOLD = 0, 1, 2, 3


def state() -> str:
    """A replica's state.

    The first line that has an answer holds: down, busy, idle; what is left is up and does not tell its load.
    SGLang tells its load with the first batch: until then it is idle.
    """
    running, waiting = (
        f"sum by ({REPLICA}) ({of(m, but=('model_name', 'engine'))})"
        for m in (c.RUNNING_SEQUENCES, c.WAITING_SEQUENCES)
    )
    why = (f'signal="{c.RUNNING_SEQUENCES.signal}"', f'reason="{Reason.NO_TRAFFIC}"')
    nothing_yet = of(c.UNAVAILABLE, *why, but=("model_name", "engine"))
    return "\n".join(
        (
            f"({up()} == 0)",
            f"or ({running} > 0 or {waiting} > 0) * 0 + {BUSY}",
            f"or {running} * 0 + {IDLE}",
            f"or max by ({REPLICA}) ({nothing_yet}) * 0 + {IDLE}",
            f"or {up()} * 0 + {NOT_TOLD}",
        )
    )
