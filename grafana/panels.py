"""Panels as this project draws them: one look, a title and a description each, a text for what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.variables import DATASOURCE

AnyPanel: TypeAlias = (
    timeseries.Panel | stat.Panel | bargauge.Panel | table.Panel | statetimeline.Panel | heatmap.Panel
)
P = TypeVar(
    "P", timeseries.Panel, stat.Panel, bargauge.Panel, table.Panel, statetimeline.Panel, heatmap.Panel
)

GREEN, YELLOW, RED, BLUE, GREY, PURPLE = "green", "yellow", "red", "blue", "#8e8e8e", "purple"
# What an empty panel says: it is not broken, and where the reason stands. A panel has one text for all
# causes, so it names none that is not the only one.
_REASONS: Final = "see “Why is a panel empty?”"
NOT_TOLD: Final = f"not told: {_REASONS}"  # there without traffic, too, where the engine tells it
NO_TRAFFIC_OR_NOT_TOLD: Final = f"no traffic, or not told: {_REASONS}"
NO_RECORDS: Final = "no finished requests are reported, or no traffic"
NOT_COMPARED: Final = f"nothing to compare with: {_REASONS}"
Steps: TypeAlias = Sequence[tuple[float | None, str]]
Query: TypeAlias = tuple[str, str]  # PromQL, legend


def above(limit: float, below: str = GREEN, over: str = RED) -> Steps:
    """Thresholds: one colour below a limit, another over it."""
    return ((None, below), (limit, over))


def _thresholds(steps: Steps) -> build.ThresholdsConfig:
    return (
        build.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=color) for value, color in steps])
    )


def _query(n: int, expr: str, legend: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(chr(ord("A") + n)).expr(expr).legend_format(legend)


def _dressed(
    panel: P, title: str, told: str, unit: str, *, empty: str, steps: Steps = (), size: tuple[int, int]
) -> P:
    made = panel.title(title).description(told).datasource(DATASOURCE).unit(unit).no_value(empty)
    made.thresholds(_thresholds(steps or ((None, GREEN),)))
    made.span(size[0]).height(size[1])
    return made


def lines(
    title: str,
    told: str,
    unit: str,
    *queries: Query,
    limit: float | None = None,
    stacked: bool = False,
    empty: str = NOT_TOLD,
    most: float | None = None,
    size: tuple[int, int] = (12, 8),
) -> timeseries.Panel:
    """Curves over time; ``limit`` is drawn as a dashed line; ``most``: upper end of the axis."""
    panel = timeseries.Panel()
    steps = above(limit, "transparent") if limit is not None else ()
    _dressed(panel, title, told, unit, empty=empty, steps=steps, size=size)
    for n, (expr, legend) in enumerate(queries):
        panel.with_target(_query(n, expr, legend).range())
    if limit is not None:
        style = build_common.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    panel.min(0).line_width(1).fill_opacity(30 if stacked else 5).show_points(common.VisibilityMode.NEVER)
    if most is not None:
        panel.max(most)
    mode = common.StackingMode.NORMAL if stacked else common.StackingMode.NONE
    panel.stacking(build_common.StackingConfig().mode(mode).group("A"))
    panel.legend(
        build_common.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(
        build_common.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )
    return panel


def _last() -> build_common.ReduceDataOptions:
    return build_common.ReduceDataOptions().calcs(["lastNotNull"])


def number(
    title: str,
    told: str,
    unit: str,
    *queries: Query,
    steps: Steps = (),
    empty: str = NOT_TOLD,
    size: tuple[int, int] = (4, 4),
    mappings: Mapping[str, tuple[str, str]] | None = None,
) -> stat.Panel:
    """Figures of now."""
    panel = stat.Panel()
    _dressed(panel, title, told, unit, empty=empty, steps=steps, size=size)
    for n, (expr, legend) in enumerate(queries):
        panel.with_target(_query(n, expr, legend).instant())
    panel.reduce_options(_last()).graph_mode(common.BigValueGraphMode.NONE)
    panel.color_mode(common.BigValueColorMode.VALUE if steps else common.BigValueColorMode.NONE)
    panel.text_mode(common.BigValueTextMode.AUTO)
    if mappings:
        panel.mappings([_mapping(mappings)])
    return panel


def bars(
    title: str,
    told: str,
    unit: str,
    *queries: Query,
    steps: Steps = (),
    empty: str = NOT_TOLD,
    size: tuple[int, int] = (12, 8),
    most: float | None = None,
) -> bargauge.Panel:
    """One bar per series, of now."""
    panel = bargauge.Panel()
    _dressed(panel, title, told, unit, empty=empty, steps=steps or ((None, BLUE),), size=size)
    for n, (expr, legend) in enumerate(queries):
        panel.with_target(_query(n, expr, legend).instant())
    panel.reduce_options(_last()).orientation(common.VizOrientation.HORIZONTAL).min(0)
    panel.display_mode(common.BarGaugeDisplayMode.BASIC)
    if most is not None:
        panel.max(most)
    return panel


def _mapping(texts: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    options = {
        value: dashboard.ValueMappingResult(text=text, color=color, index=n)
        for n, (value, (text, color)) in enumerate(texts.items())
    }
    return dashboard.ValueMap(options=options)


def states(
    title: str,
    told: str,
    texts: Mapping[str, tuple[str, str]],
    query: Query,
    *,
    empty: str,
    size: tuple[int, int] = (24, 6),
) -> statetimeline.Panel:
    """A row per series whose values are words; ``texts``: value -> (word, colour)."""
    panel = statetimeline.Panel()
    _dressed(panel, title, told, "none", empty=empty, size=size)
    panel.with_target(_query(0, *query).range()).mappings([_mapping(texts)])
    panel.merge_values(True).show_value(common.VisibilityMode.AUTO).row_height(0.8).fill_opacity(70).per_page(
        20
    )
    panel.legend(
        build_common.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    return panel


def heat(
    title: str,
    told: str,
    unit: str,
    expr: str,
    *,
    empty: str,
    repeat: str = "",
    size: tuple[int, int] = (12, 7),
) -> heatmap.Panel:
    """How often which bucket of a histogram; ``repeat``: a panel for each value of that variable."""
    panel = heatmap.Panel()
    _dressed(panel, title, told, unit, empty=empty, size=size)
    panel.with_target(_query(0, expr, "{{le}}").range().format(PromQueryFormat.HEATMAP))
    panel.calculate(False)
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    if repeat:
        panel.repeat(repeat).repeat_direction("h").max_per_row(4)
    return panel


@dataclass(frozen=True, slots=True)
class Column:
    """A column of figures in a table.  Without a ``title`` it only brings labels along."""

    title: str
    expr: str
    unit: str = "none"
    steps: Steps = ()
    texts: Mapping[str, tuple[str, str]] | None = None
    decimals: int | None = None


def rows(
    title: str,
    told: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    sort: str | None,
    descending: bool = True,
    texts: Mapping[str, Mapping[str, tuple[str, str]]] | None = None,
    empty: str = NOT_TOLD,
    size: tuple[int, int] = (24, 9),
    link: tuple[str, str, str] | None = None,
) -> table.Panel:
    """A table of now: ``labels`` (name -> heading) and a column per query, joined by the labels all have.

    ``sort``: the heading to sort by, None for the query's own order; ``texts``: heading of a label -> its
    values' words; ``link``: (heading, words, URL).
    """
    panel = table.Panel()
    _dressed(panel, title, told, "none", empty=empty, size=size)
    for n, column in enumerate(columns):
        panel.with_target(_query(n, column.expr, "").instant().format(PromQueryFormat.TABLE))
    values = ["Value"] if len(columns) == 1 else [f"Value #{chr(ord('A') + n)}" for n in range(len(columns))]
    hidden = ["Time", *(value for value, column in zip(values, columns, strict=True) if not column.title)]
    shown = {value: column.title for value, column in zip(values, columns, strict=True) if column.title}
    if len(columns) > 1:
        panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    organize = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: n for n, name in enumerate([*labels, *shown])},
        "renameByName": {**labels, **shown},
    }
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=organize))
    if sort is not None:
        order = {"fields": {}, "sort": [{"field": sort, "desc": descending}]}
        panel.with_transformation(dashboard.DataTransformerConfig(id_val="sortBy", options=order))
    for column in columns:
        if column.title:
            panel.override_by_name(column.title, _properties(column))
    for heading, words in (texts or {}).items():
        panel.override_by_name(heading, [_property("mappings", [_mapping(words)])])
    if link is not None:
        heading, words_shown, url = link
        panel.override_by_name(heading, [_property("links", [{"title": words_shown, "url": url}])])
    panel.filterable(True)
    return panel


def _property(name: str, value: object) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def _properties(column: Column) -> list[dashboard.DynamicConfigValue]:
    made = [_property("unit", column.unit)]
    if column.decimals is not None:
        made.append(_property("decimals", column.decimals))
    if column.texts:
        made.append(_property("mappings", [_mapping(column.texts)]))
    if column.steps:
        steps = {"mode": "absolute", "steps": [{"value": v, "color": color} for v, color in column.steps]}
        made.append(_property("thresholds", steps))
    if column.steps or column.texts:
        made.append(_property("custom.cellOptions", {"type": "color-text"}))
    return made
