"""What a panel shows: its queries as Grafana would send them, answered by a Prometheus."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import httpx

_LABEL_VALUES: Final = re.compile(r"label_values\((?P<series>.*), (?P<label>\w+)\)$", re.DOTALL)
_ALL: Final = ".*"


@cache
def _roots() -> ssl.SSLContext:
    # Once: reading the certificates takes longer than a query.
    return httpx.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels, and (Unix time, value) pairs; an instant query gives one pair."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus over a time range, with the boards' variables set.

    ``chosen``: variable -> a value, as a regular expression; those left out are "All".
    ``step`` and ``scrape``: seconds between points and between scrapes.
    """

    url: str
    start: float
    end: float
    step: float = 60.0
    scrape: float = 15.0
    chosen: Mapping[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        """``text`` with Grafana's variables replaced."""
        told = {
            "__rate_interval": f"{max(4 * self.scrape, self.step + self.scrape):g}s",
            "__interval": f"{self.step:g}s",
            "__range_s": f"{self.end - self.start:g}",
            "__range": f"{self.end - self.start:g}s",
            "users": "100",
            **self.chosen,
        }
        # $1 is a group of label_replace(), no variable.
        return re.sub(r"\$([a-z_]\w*)", lambda found: told.get(found[1], _ALL), text)

    def ask(self, path: str, **query: object) -> Any:
        """``data`` of an answer of the HTTP API.  Raises httpx.HTTPError, or ValueError."""
        answer = httpx.get(
            f"{self.url}/api/v1/{path}",
            params=query,  # type: ignore[arg-type]
            timeout=60,
            trust_env=False,
            verify=_roots(),
        )
        if answer.status_code in (400, 422):
            raise ValueError(answer.json()["error"])
        return answer.raise_for_status().json()["data"]

    def answer(self, target: Mapping[str, Any]) -> list[Series]:
        """The series that a panel's or an annotation's query gives."""
        expr = self.filled(target["expr"])
        if target.get("instant"):
            told = self.ask("query", query=expr, time=self.end)["result"]
            return [Series(one["metric"], [_point(*one["value"])]) for one in told]
        told = self.ask("query_range", query=expr, start=self.start, end=self.end, step=self.step)["result"]
        return [Series(one["metric"], [_point(*pair) for pair in one["values"]]) for one in told]

    def values(self, query: str) -> list[str]:
        """What a variable offers.  Raises ValueError where the query is no label_values()."""
        found = _LABEL_VALUES.fullmatch(self.filled(query))
        if found is None:
            raise ValueError(f"not label_values(): {query}")
        given: list[str] = self.ask(
            f"label/{found['label']}/values",
            **{"match[]": found["series"], "start": self.start, "end": self.end},
        )
        return given


def _point(at: float, value: str) -> tuple[float, float]:
    return float(at), float(value)


def legend(template: str, labels: Mapping[str, str]) -> str:
    """A legend's text; a label that is not there leaves nothing behind."""
    told = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)
    return " ".join(told.replace("()", "").split())


def table(
    panel: Mapping[str, Any], answers: Sequence[Sequence[Series]]
) -> tuple[list[str], list[list[object]]]:
    """(headings, rows) of a table panel: its queries joined by the labels that all of them have."""
    answers_there = [answer for answer in answers if answer]
    kept = [set().union(*(one.labels for one in answer)) - {"__name__"} for answer in answers_there]
    key = sorted(set.intersection(*kept)) if kept else []
    joined: dict[tuple[str, ...], dict[str, object]] = {}
    for n, answer in enumerate(answers):
        name = "Value" if len(answers) == 1 else f"Value #{chr(ord('A') + n)}"
        for one in answer:
            row = joined.setdefault(tuple(one.labels.get(label, "") for label in key), {})
            row |= {**one.labels, name: one.points[-1][1]}
    changes = {one["id"]: one["options"] for one in panel["transformations"]}
    organize = changes["organize"]
    index: dict[str, int] = organize["indexByName"]
    names = [name for name in sorted(index, key=index.__getitem__) if not organize["excludeByName"].get(name)]
    # A label that no series has is no column.
    names = [name for name in names if any(name in row for row in joined.values())]
    rows = [[row.get(name) for name in names] for row in joined.values()]
    headings = [organize["renameByName"].get(name, name) for name in names]
    if "sortBy" in changes:
        order = changes["sortBy"]["sort"][0]
        by = headings.index(order["field"]) if order["field"] in headings else 0
        # Texts and numbers apart; what is missing comes last.
        rows.sort(key=lambda row: _rank(row[by], descending=order["desc"]))
    return headings, rows


def _rank(value: object, *, descending: bool) -> tuple[int, float, str]:
    if isinstance(value, float):
        return 0, -value if descending else value, ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))
