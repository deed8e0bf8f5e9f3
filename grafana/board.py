"""A board: rows of panels, the variables, links and annotations that all boards have."""

from collections.abc import Sequence
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model

from exporter import catalogue as c
from grafana import variables
from grafana.panels import AnyPanel
from grafana.queries import firing, of

TAG: Final = "kvcache"
Section = tuple[str, Sequence[AnyPanel]]


class PrometheusAnnotation(model.AnnotationQuery):
    """An annotation with the fields that the Prometheus data source reads and the SDK does not know."""

    def __init__(self, name: str, color: str, expr: str, title: str, text: str) -> None:
        super().__init__(name=name, datasource=variables.DATASOURCE, icon_color=color, expr=expr)
        self._formats = {"titleFormat": title, "textFormat": text, "step": "60s"}

    def to_json(self) -> dict[str, object]:
        return {**super().to_json(), **self._formats}


class _Built(Builder[model.AnnotationQuery]):
    def __init__(self, made: model.AnnotationQuery) -> None:
        self._made = made

    def build(self) -> model.AnnotationQuery:
        return self._made


def _annotations() -> list[Builder[model.AnnotationQuery]]:
    """Alerts while they fire, and restarts."""
    restarts = f"increase({of(c.ENGINE_RESTARTS)}[$__rate_interval]) > 0"
    made = (
        PrometheusAnnotation(
            "Alerts", "red", firing(), "{{alertname}}", "{{severity}}: {{model_name}} {{pod}} {{target}}"
        ),
        PrometheusAnnotation(
            "Engine restarts", "blue", restarts, "Engine restarted", "{{namespace}} {{pod}} {{target}}"
        ),
    )
    return [_Built(one) for one in made]


def board(
    uid: str,
    title: str,
    told: str,
    sections: Sequence[Section],
    *,
    more_variables: Sequence[variables.Variable] = (),
    since: str = "now-6h",
) -> dict[str, Any]:
    """The board's JSON.  Panels get ids in reading order."""
    made = (
        build.Dashboard(title)
        .uid(uid)
        .description(told)
        .tags([TAG])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time(since, "now")
        .refresh("1m")
        .timezone("browser")
        .variables([*variables.common(), *more_variables])
        .annotations(_annotations())
        .link(
            build.DashboardLink("KV cache")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(True)
            .keep_time(True)
        )
    )
    number = 0
    for heading, panels in sections:
        number += 1
        made.with_row(build.Row(heading).id(number))
        for panel in panels:
            number += 1
            made.with_panel(panel.id(number))
    built: dict[str, Any] = made.build().to_json()
    return built
