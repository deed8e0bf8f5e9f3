"""The committed boards, taken apart for the tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from grafana.build import BOARDS, FOLDER

COMMITTED: Final[Mapping[str, Mapping[str, Any]]] = {
    uid: json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8")) for uid in BOARDS
}


def panels() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(uid, panel) of every panel that is no row."""
    for uid, board in COMMITTED.items():
        for panel in board["panels"]:
            if panel["type"] != "row":
                yield uid, panel


def queries() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every panel and annotation, and the series of every variable."""
    for uid, panel in panels():
        for target in panel["targets"]:
            yield f"{uid} / {panel['title']} / {target['refId']}", target["expr"]
    for uid, board in COMMITTED.items():
        for one in board["annotations"]["list"]:
            yield f"{uid} / annotation {one['name']}", one["expr"]
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), \w+\)", one["query"])
                assert found is not None, one["query"]
                yield f"{uid} / variable {one['name']}", found[1]


def selectors(expr: str) -> Iterator[tuple[str, str]]:
    """(name, matchers) of every series an expression reads; matchers are empty where it has none."""
    bare = re.sub(r'"[^"]*"', lambda text: text[0].replace("{", "<").replace("}", ">"), expr)
    for found in re.finditer(r"\b(kvcache[a-z0-9_:]+|ALERTS|up)\b(\{[^}]*\})?", bare):
        yield found[1], found[2] or ""
