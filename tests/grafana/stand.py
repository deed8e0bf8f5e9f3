"""A real Prometheus that holds the recorded afternoon: exported series, every recording rule, and alerts."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alerts.rules import groups, thresholds
from tests.alerts.promtool import needs
from tests.alerts.stand import Prometheus

from .recorded import START, STEP_S, TIERS, line, record
from .tapes import END_S

END: Final = START + END_S
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_NAME: Final = re.compile(r"kvcache:[a-z0-9_:]+")


def rules() -> list[Any]:
    """All groups, the everyday tiers being those of the recorded requests."""
    numbers = copy.deepcopy(thresholds())
    numbers["tiers"] = {"short": "|".join(map(str, TIERS)), "reference": str(TIERS[-1])}
    return groups(numbers)


def levels(made: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Recording rules, each after those that it is made of.

    A rule made of its own name comes after the rules of that name that begin anew.

    Raises:
        ValueError: rules that wait for each other.
    """
    left = [rule for group in made for rule in group["rules"] if "record" in rule]
    ordered: list[list[dict[str, Any]]] = []
    while left:
        anew = {rule["record"] for rule in left if rule["record"] not in _names(rule)}
        waiting = {rule["record"] for rule in left}
        ready = [rule for rule in left if not _names(rule) & (anew | (waiting - {rule["record"]}))]
        if not ready:
            raise ValueError(f"rules that wait for each other: {sorted(waiting)}")
        ordered.append(ready)
        left = [rule for rule in left if rule not in ready]
    return ordered


def _names(rule: Mapping[str, Any]) -> set[str]:
    """Recording rules that a rule is made of."""
    return set(_NAME.findall(rule["expr"]))


def _over_time(prometheus: Prometheus, expr: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    told = prometheus.get("query_range", query=expr, start=str(START), end=str(END), step=str(STEP_S))[
        "result"
    ]
    return [
        (
            {k: v for k, v in one["metric"].items() if k != "__name__"},
            [(t, float(v)) for t, v in one["values"]],
        )
        for one in told
    ]


def _recorded(prometheus: Prometheus, rule: Mapping[str, Any]) -> Iterator[str]:
    for labels, values in _over_time(prometheus, rule["expr"]):
        named = {**labels, **rule.get("labels", {})}
        for at, value in values:
            yield line(rule["record"], named, value, at)


def _alerts(prometheus: Prometheus, rule: Mapping[str, Any]) -> Iterator[str]:
    """ALERTS as Prometheus writes it: pending until the expression held for as long as the rule says."""
    hold = int(rule["for"][:-1]) * _SECONDS[rule["for"][-1]]
    for labels, values in _over_time(prometheus, rule["expr"]):
        since = last = values[0][0]
        for at, _ in values:
            since = since if at - last <= STEP_S else at
            last = at
            state = "firing" if at - since >= hold else "pending"
            yield line(
                "ALERTS",
                {**labels, **rule["labels"], "alertname": rule["alert"], "alertstate": state},
                1.0,
                at,
            )


def _add(folder: Path, text: Path) -> None:
    """OpenMetrics into blocks of the database."""
    command = [needs("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(text)]
    done = subprocess.run([*command, str(folder / "prometheus")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])


@contextmanager
def afternoon(folder: Path) -> Iterator[Prometheus]:
    """The Prometheus, ready; ``folder`` is empty."""
    needs("prometheus")
    text = folder / "series.txt"
    record(text, folder / "model")
    _add(folder, text)
    made = rules()
    alerting = [rule for group in made for rule in group["rules"] if "alert" in rule]
    steps = [*((level, _recorded) for level in levels(made)), (alerting, _alerts)]
    for several, written in steps:
        with Prometheus([], folder) as prometheus:
            prometheus.wait_ready()
            rows = [row for rule in several for row in written(prometheus, rule)]
        text.write_text("".join(rows) + "# EOF\n")
        _add(folder, text)
    with Prometheus(made, folder) as prometheus:
        prometheus.wait_ready()
        yield prometheus
