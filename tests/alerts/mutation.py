"""Changes to rules that a test must notice: numbers, operators, windows, labels, guards."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .promtool import needed

# A number that is compared with or a quantile, not one inside a name, a window or a label's value.
_NUMBER: Final = re.compile(r"(?:(?<=[<>=] )|(?<=quantile\()|(?<=over_time\())(\d+(?:\.\d+)?)(?![\w.])")
_OPERATOR: Final = re.compile(r"(?<= )(>=|<=|==|>|<)(?= )")
_WINDOW: Final = re.compile(r"(?:(?<=\[)|(?<=offset ))(\d+)([smhd])\b")
_GROUPING: Final = re.compile(r"\b(without|by|on|ignoring) \(([a-z_, ]+)\)")
_MATCHER: Final = re.compile(r'\b([a-z_]+)(=~|!~|=)"[^"]*"')
_GUARD: Final = re.compile(r"^ *(?:and|or|unless) .*$", re.M)
_TURNED: Final = {">": "<", "<": ">", ">=": "<", "<=": ">", "==": "!="}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: of what kind, in which rule, from what to what."""

    kind: str
    rule: str
    change: str
    groups: Sequence[Mapping[str, Any]]


def _texts(expr: str) -> Iterator[tuple[str, str, str]]:
    """(kind, what changed, the changed expression)."""

    def at(found: re.Match[str], new: str) -> str:
        return expr[: found.start()] + new + expr[found.end() :]

    for found in _NUMBER.finditer(expr):
        number = float(found[1])
        for new in (f"{number * 1.2:g}", f"{number * 0.8:g}") if number else ("1e12",):
            yield "threshold", f"{found[0]} -> {new} at {found.start()}", at(found, new)
    for found in _OPERATOR.finditer(expr):
        yield (
            "operator",
            f"{found[0]} -> {_TURNED[found[0]]} at {found.start()}",
            at(found, _TURNED[found[0]]),
        )
    for found in _WINDOW.finditer(expr):
        seconds = int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
        for new in (f"{seconds * 2}s", f"{seconds // 2}s"):
            yield "window", f"{found[0]} -> {new} at {found.start()}", at(found, new)
    for found in _GROUPING.finditer(expr):
        names = found[2].split(", ")
        for name in names:
            left = ", ".join(n for n in names if n != name)
            yield "label", f"{found[0]} less {name} at {found.start()}", at(found, f"{found[1]} ({left})")
    for found in _MATCHER.finditer(expr):
        yield "label", f"{found[0]} dropped at {found.start()}", at(found, "")
    for found in _GUARD.finditer(expr):
        yield "guard", f"{found[0]} dropped", at(found, "")


def _tidy(expr: str) -> str:
    """Commas of a selector that lost a matcher."""
    return re.sub(r",\s*}", "}", expr.replace("{,", "{"))


def _changes(rule: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, what changed, the fields that are new)."""
    for kind, change, expr in _texts(rule["expr"]):
        yield kind, change, {"expr": _tidy(expr)}
    if "alert" in rule:
        held, kept = (int(rule[key].removesuffix("m")) for key in ("for", "keep_firing_for"))
        for minutes in (held * 2, held - 1):
            yield "for", f"for {minutes}m", {"for": f"{minutes}m"}
        for text in ("1s", f"{kept * 3}m"):
            yield "for", f"keep_firing_for {text}", {"keep_firing_for": text}
        yield "label", "severity none", {"labels": {"severity": "none"}}
    elif "labels" in rule:
        yield "label", "labels dropped", {"labels": {}}


def mutants(groups: Sequence[Mapping[str, Any]], alert: str) -> Iterator[Mutant]:
    """Every change to an alert or to a recording rule that it is made from."""
    cut = needed(groups, {alert})
    for g, group in enumerate(cut):
        for r, rule in enumerate(group["rules"]):
            for kind, change, new in _changes(rule):
                made = copy.deepcopy(cut)
                made[g]["rules"][r] |= new
                yield Mutant(kind, rule.get("record", rule.get("alert")), change, made)
