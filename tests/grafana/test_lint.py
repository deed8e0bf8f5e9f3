"""What a person expects of any board: the rules of the public dashboard linter, and some of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from alerts.rules import thresholds
from grafana.build import main
from grafana.units import FORMATS

from .boards import COMMITTED, panels, queries, selectors

PANELS: Final = [pytest.param(uid, panel, id=f"{uid}-{panel['id']}") for uid, panel in panels()]
BOARDS: Final = [pytest.param(board, id=uid) for uid, board in COMMITTED.items()]
COMMON: Final = ["datasource", "cluster", "namespace", "pod", "target", "model", "engine"]
# Read by the data source, unknown to the SDK's model of an annotation.
ANNOTATION_EXTRAS: Final = {"titleFormat", "textFormat", "step"}


def test_committed_json_is_what_the_code_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """A board that was edited by hand would be lost at the next build."""
    assert main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("board", BOARDS)
def test_schema_round_trip(board: Mapping[str, Any]) -> None:
    """The SDK of this Grafana reads the board and writes the same: no field that Grafana does not know."""
    register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(json.loads(json.dumps(board))), cls=JSONEncoder))
    expected = json.loads(json.dumps(board))
    for one in expected["annotations"]["list"]:
        for extra in ANNOTATION_EXTRAS:
            del one[extra]
    for one in again["panels"]:
        # The SDK's reader gives a heatmap an empty object that nobody wrote.
        if one["type"] == "heatmap" and one["fieldConfig"]["defaults"]["custom"] == {}:
            del one["fieldConfig"]["defaults"]["custom"]
    assert again == expected


@pytest.mark.parametrize("board", BOARDS)
def test_variables_and_links(board: Mapping[str, Any]) -> None:
    """The same variables in the same order on every board, kept by the links between them."""
    several = board["templating"]["list"]
    assert [one["name"] for one in several][: len(COMMON)] == COMMON
    assert several[0]["type"] == "datasource"
    assert several[0]["query"] == "prometheus"
    for one in several:
        assert one["label"]
        if one["type"] == "query":
            assert one["multi"]
            assert one["includeAll"]
            assert one["allValue"] == ".*", "a plain Prometheus has no cluster, namespace or pod"
            assert one["refresh"] == 2, "else a pod that came later is missing"
    (link,) = board["links"]
    assert link["includeVars"]
    assert link["keepTime"]
    assert set(link["tags"]) <= set(board["tags"])


@pytest.mark.parametrize("board", BOARDS)
def test_nothing_belongs_to_one_grafana(board: Mapping[str, Any]) -> None:
    """A data source or an id of somebody's own Grafana would be wrong in every other one."""
    assert "id" not in board
    holders = [*board["panels"], *board["annotations"]["list"], *board["templating"]["list"]]
    sources = [one["datasource"] for one in holders if "datasource" in one]
    assert sources
    assert all(one == {"type": "prometheus", "uid": "${datasource}"} for one in sources)


@pytest.mark.parametrize("board", BOARDS)
def test_panels_have_ids_and_places_of_their_own(board: Mapping[str, Any]) -> None:
    """Grafana loses one of two panels with the same id, and draws overlapping ones over each other."""
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= 24 and p["h"] > 0 for p in places)
    for a, b in combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y, (a, b)
    titles = [panel["title"] for panel in board["panels"]]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("board", BOARDS)
def test_boards_load_in_a_sensible_number_of_queries(board: Mapping[str, Any]) -> None:
    """Every one of them is sent at every refresh."""
    assert sum(len(panel.get("targets", ())) for panel in board["panels"]) <= 25


@pytest.mark.parametrize(("uid", "panel"), PANELS)
def test_panel_explains_itself(uid: str, panel: Mapping[str, Any]) -> None:
    """A figure without unit, or a panel without a word on what to do, is a riddle at night."""
    assert panel["title"]
    assert len(panel["description"]) > 20, panel["title"]
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in FORMATS, panel["title"]
    assert defaults["noValue"], "an empty panel says what that means"
    for one in panel["fieldConfig"].get("overrides", ()):
        told = {p["id"]: p["value"] for p in one["properties"]}
        assert told.get("unit", "none") in FORMATS
    for target in panel["targets"]:
        if panel["type"] not in ("table", "heatmap"):
            assert target["legendFormat"], panel["title"]


@pytest.mark.parametrize(("where", "expr"), list(queries()))
def test_every_series_is_chosen_by_the_variables(where: str, expr: str) -> None:
    """One series without a selector reads every engine of the company."""
    found = list(selectors(expr))
    assert found
    # The first variable of the chain has nothing before it to choose by.
    if where.endswith("variable cluster"):
        return
    for name, matchers in found:
        assert 'cluster=~"$cluster"' in matchers, (where, name)


@pytest.mark.parametrize(("where", "expr"), list(queries()))
def test_rates_follow_the_scrape_interval(where: str, expr: str) -> None:
    """A fixed window is empty where somebody scrapes less often; $__range is what the reader asked for."""
    if " / variable " in where:  # it lists names, over the time shown
        return
    for window in re.findall(r"\[([^]]*)\]", expr):
        assert window in ("$__rate_interval", "$__range"), where
    for name in re.findall(r"(?<![(\w])(kvcache_\w+_total)\b", expr):
        pytest.fail(f"{where}: counter {name} without rate()")


def test_limits_are_those_of_the_alerts() -> None:
    """Spelt out here once: what is drawn, against the file that the alerts are made of."""
    numbers = thresholds()
    drawn = {
        (panel["title"], step["value"])
        for _, panel in panels()
        for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        if step.get("value") is not None
    }
    assert {
        ("KV cache usage", numbers["usage_high"]["ratio"]),
        ("Share of the last hour above 85%", numbers["usage_high_p95"]["share"]),
        ("Time until full", numbers["will_fill"]["within_seconds"]),
        ("Preempted share of requests", numbers["preemptions"]["ratio"]),
        ("ITL over its baseline", numbers["itl_regression"]["ratio"]),
        ("Long tiers over the everyday one", numbers["long_context_slow"]["ratio"]),
        ("Pool against its best of the last hours", numbers["capacity_dropped"]["ratio"]),
        ("Longest sequence, share of the pool", numbers["max_model_len"]["ratio"]),
    } <= drawn
