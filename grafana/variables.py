"""The variables that all boards share, and those of single boards."""

from __future__ import annotations

from typing import Final, TypeAlias

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model

from exporter import catalogue as c
from grafana.queries import of

Variable: TypeAlias = Builder[model.VariableModel]

DATASOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Matches what lacks the label, too: a plain Prometheus knows no cluster, namespace or pod.
ANYTHING: Final = ".*"
# Name, label, whose values, title, what it is.
_CHAIN: Final = (
    ("cluster", "cluster", c.ENGINE_UP, "Cluster", "The scrape's label `cluster`"),
    ("namespace", "namespace", c.ENGINE_UP, "Namespace", "The scrape's label `namespace`"),
    ("pod", "pod", c.ENGINE_UP, "Pod", "The scrape's label `pod`"),
    ("target", "target", c.ENGINE_UP, "Target", "The engine, as its exporter names it"),
    ("model", "model_name", c.ENGINE_INFO, "Model", "The model's name, as it is served"),
    ("engine", "engine", c.ENGINE_INFO, "Rank", "Data-parallel rank of an engine"),
)


def _choice(name: str, values: str, title: str, told: str, *, numbers: bool = False) -> Variable:
    return (
        build.QueryVariable(name)
        .label(title)
        .description(told)
        .query(values)
        .datasource(DATASOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NUMERICAL_ASC if numbers else model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(ANYTHING)
        .current(model.VariableOption(text="All", value="$__all"))
    )


def common() -> list[Variable]:
    """Data source, then one variable after the other, each offering what those before it leave."""
    made: list[Variable] = [
        build.DatasourceVariable("datasource").label("Data source").type("prometheus"),
    ]
    labels = tuple(row[1] for row in _CHAIN)
    for n, (name, label, metric, title, told) in enumerate(_CHAIN):
        values = f"label_values({of(metric, but=labels[n:])}, {label})"
        made.append(_choice(name, values, title, told, numbers=name == "engine"))
    return made


def context(metric: c.Metric) -> Variable:
    """The context tiers that ``metric`` has."""
    values = f"label_values({of(metric, suffix='_count' if metric.kind == 'histogram' else '')}, context)"
    told = "The upper bound of prompt and output together, in tokens"
    return _choice("context", values, "Context tier", told, numbers=True)


def route() -> Variable:
    """Routes that the prefix cache is counted by."""
    values = f"label_values({of(c.PREFIX_QUERY_TOKENS)}, route)"
    return _choice("route", values, "Route", "Requests of one kind, as the engine or the settings name them")


def users() -> Variable:
    """How many users are planned for."""
    told = "Sequences at the same time that you plan for"
    return build.TextBoxVariable("users").label("Users at once").description(told).default_value("100")
