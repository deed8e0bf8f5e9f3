"""What the boards name against what there is: a removed metric breaks a test here, not a user's board."""

from __future__ import annotations

import re

import pytest

from alerts.rules import groups
from exporter import catalogue as c
from exporter.catalogue import CATALOGUE
from grafana import queries as q
from grafana.alerts import PANELS
from grafana.common import MEANINGS

from .boards import COMMITTED, queries, selectors

_METRICS = {metric.name: metric for metric in CATALOGUE}
_SCRAPED = {"cluster", "namespace", "pod", "job", "instance"}
_LABELS = {
    *_SCRAPED,
    *(label for metric in CATALOGUE for label in metric.labels),
    *("le", "basis", "source", "alertname", "alertstate", "severity"),
}


def _family(name: str) -> c.Metric | None:
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    if name in _METRICS and _METRICS[name].kind != "histogram":
        return _METRICS[name]
    return _METRICS[base] if base in _METRICS and _METRICS[base].kind == "histogram" else None


@pytest.mark.parametrize(("where", "expr"), list(queries()))
def test_series_and_their_labels_exist(where: str, expr: str) -> None:
    """Of exported series the labels must be the metric's own; of recorded ones some metric's."""
    for name, matchers in selectors(expr):
        matched = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers))
        if name in q.recorded_names() or name in ("ALERTS", "up"):
            assert matched <= _LABELS, where
            continue
        metric = _family(name)
        assert metric is not None, f"{where}: nobody exports {name}"
        assert matched <= {*_SCRAPED, *metric.labels, "le"}, (where, name)
    for grouped in re.findall(r"\b(?:by|without|on|ignoring|group_left) \(([^)]*)\)", expr):
        assert {label.strip() for label in grouped.split(",") if label.strip()} <= _LABELS, where


def test_a_removed_rule_or_metric_breaks_the_build() -> None:
    """The helpers must refuse what is not there, or the boards would be built without it."""
    with pytest.raises(q.UnknownSeriesError):
        q.recorded("kvcache:nobody:made_this", q.RANK)
    with pytest.raises(q.UnknownSeriesError):
        q.of(c.ITL_SECONDS)
    with pytest.raises(q.UnknownSeriesError):
        q.of(c.USAGE_RATIO, suffix="_bucket")


def test_every_alert_has_its_panel() -> None:
    """Whoever is paged follows the link of the alert and must find the figure that fired."""
    assert set(PANELS) == q.alert_names()
    for alert, (uid, title) in PANELS.items():
        assert title in [panel["title"] for panel in COMMITTED[uid]["panels"]], alert


def test_panel_of_an_alert_shows_what_it_measures() -> None:
    """The panel reads a series that the alert's own expression reads, and the alert links to its board."""
    rules = {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}
    for alert, (uid, title) in PANELS.items():
        (panel,) = [one for one in COMMITTED[uid]["panels"] if one["title"] == title]
        shown = {name for target in panel["targets"] for name, _ in selectors(target["expr"])}
        measured = {name for name, _ in selectors(rules[alert]["expr"])}
        # The engine's state is told by the reasons why it could not be read.
        assert shown & measured or alert == "KVCacheEngineDown", alert
        assert rules[alert]["annotations"]["dashboard"].rpartition("/")[2] == uid, alert


def test_every_reason_has_a_meaning() -> None:
    """Idle, not supported and broken must not look the same."""
    assert MEANINGS["idle"][1] == MEANINGS["no_traffic"][1]
    colours = [
        MEANINGS[reason][1] for reason in ("idle", "not_reported", "model_config", "connection_refused")
    ]
    assert len(set(colours)) == len(colours)
