"""A panel's JSON and its data -> a drawing of what Grafana would show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from grafana.draw_table import rows
from grafana.look import FAINT, GRID, INK, SMALL, by_threshold, colour, mapped
from grafana.source import Series, legend
from grafana.units import written

PALETTE: Final = (
    *("#3d7fc4", "#e0752d", "#508642", "#ba43a9", "#cca300", "#0a9396", "#bf1b00", "#705da0", "#8f6b32"),
    *("#447ebc", "#c15c17", "#7eb26d", "#962d82", "#e5ac0e", "#58140c"),
)
_TIME_STEPS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 4 * 3600, 86400)
_TICK_MINUTES: Final = (5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 10080, 10**6)
Answers = Sequence[Sequence[Series]]


def _defaults(panel: Mapping[str, Any]) -> Mapping[str, Any]:
    told: Mapping[str, Any] = panel["fieldConfig"]["defaults"]
    return told


def _named(panel: Mapping[str, Any], answers: Answers) -> list[tuple[str, Series]]:
    return [
        (legend(target.get("legendFormat", ""), one.labels), one)
        for target, answer in zip(panel["targets"], answers, strict=True)
        for one in answer
    ]


def _time_axis(axes: Axes, span: tuple[float, float]) -> None:
    axes.set_xlim(*span)
    every = next(m * 60 for m in _TICK_MINUTES if (span[1] - span[0]) / (m * 60) <= 8)
    pattern = "%H:%M" if every < 86400 else "%d %b"
    ticks = np.arange(span[0] // every * every + every, span[1], every)
    axes.set_xticks(ticks, [f"{datetime.fromtimestamp(at, UTC):{pattern}}" for at in ticks])
    axes.tick_params(labelsize=SMALL, colors=FAINT, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _gaps(one: Series, step: float) -> tuple[list[float], list[float]]:
    """A curve broken where samples are missing."""
    at: list[float] = []
    values: list[float] = []
    for when, value in one.points:
        if at and when - at[-1] > 1.5 * step:
            at.append(at[-1] + step)
            values.append(float("nan"))
        at.append(when)
        values.append(value)
    return at, values


def lines(
    axes: Axes, panel: Mapping[str, Any], answers: Answers, span: tuple[float, float], step: float
) -> None:
    """Curves, stacked or not, with a legend below and a dashed threshold."""
    told, named = _defaults(panel), _named(panel, answers)
    unit, custom = told.get("unit", "none"), told["custom"]
    if custom["stacking"]["mode"] == "normal":
        grid = np.arange(span[0], span[1] + 1, step)
        rows = np.zeros((len(named), len(grid)))
        for n, (_, one) in enumerate(named):
            for at, value in one.points:
                rows[n, round((at - span[0]) / step)] = value
        axes.stackplot(
            grid,
            np.nan_to_num(rows),
            labels=[name for name, _ in named],
            colors=PALETTE,
            alpha=0.55,
        )
    else:
        for n, (name, one) in enumerate(named):
            style = "--" if name.startswith("objective") else "-"
            axes.plot(
                *_gaps(one, step),
                style,
                label=name,
                color=PALETTE[n % len(PALETTE)],
                linewidth=1.2,
            )
    if custom.get("thresholdsStyle", {}).get("mode") == "dashed":
        for mark in told["thresholds"]["steps"]:
            if mark.get("value") is not None:
                axes.axhline(mark["value"], color=colour(mark["color"]), linestyle="--", linewidth=1)
    top = told.get("max")
    highest = max((v for _, one in named for _, v in one.points if np.isfinite(v)), default=1.0)
    axes.set_ylim(told.get("min", None), top if top is not None else None)
    if top is None and highest == 0:
        axes.set_ylim(0, 1)
    _, high = axes.get_ylim()
    every = next((base for base in _TIME_STEPS if high / base <= 5), 7 * 86400) if unit == "s" else 0
    axes.yaxis.set_major_locator(MultipleLocator(every) if every and high > 5 else MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, unit)))
    axes.grid(axis="both", color=GRID, linewidth=0.6)
    _time_axis(axes, span)
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, min(4, int(axes.get_window_extent().width / (30 + 5 * max(map(len, names), default=1)))))
    shown = named[: 3 * columns]
    if len(named) > len(shown):
        names[len(shown) - 1] = f"… {len(named) - len(shown) + 1} more"
    axes.legend(
        handles[: len(shown)],
        names[: len(shown)],
        loc="upper left",
        bbox_to_anchor=(0, -0.1),
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.2,
        borderpad=0,
    )


def _runs(one: Series, step: float) -> list[tuple[float, float, float]]:
    """(start, seconds, value) of each stretch of one value."""
    made: list[tuple[float, float, float]] = []
    for at, value in one.points:
        if made and made[-1][2] == value and at - (made[-1][0] + made[-1][1]) < 1:
            made[-1] = (made[-1][0], at + step - made[-1][0], value)
        else:
            made.append((at, step, value))
    return made


def states(
    axes: Axes, panel: Mapping[str, Any], answers: Answers, span: tuple[float, float], step: float
) -> None:
    """Coloured bars over time, a row per series."""
    mappings, named = _defaults(panel)["mappings"], sorted(_named(panel, answers), key=lambda one: one[0])
    for row, (_, one) in enumerate(reversed(named)):
        for at, length, value in _runs(one, step):
            words = mapped(value, mappings)
            axes.barh(row, length, left=at, height=0.8, color=words[1] if words else GRID)
    axes.set_yticks(range(len(named)), [name for name, _ in reversed(named)])
    _time_axis(axes, span)
    seen = {one for _, series in named for _, one in series.points}
    known = [found for value in sorted(seen) if (found := mapped(value, mappings)) is not None]
    patches = [Rectangle((0, 0), 1, 1, color=shade) for _, shade in known]
    axes.legend(
        patches,
        [text for text, _ in known],
        loc="upper left",
        bbox_to_anchor=(0, -0.12),
        ncols=4,
        fontsize=SMALL,
        frameon=False,
        borderpad=0,
    )


def bars(axes: Axes, panel: Mapping[str, Any], answers: Answers, *_: object) -> None:
    """A horizontal bar per series, its value behind it."""
    told, named = _defaults(panel), _named(panel, answers)
    unit = told.get("unit", "none")
    values = [one.points[-1][1] for _, one in named]
    finite = [value for value in values if np.isfinite(value)]
    most = told.get("max") or max(finite, default=1.0) or 1.0
    for row, value in enumerate(reversed(values)):
        axes.barh(row, most, color="#f0f2f4", height=0.7)
        if np.isfinite(value):
            axes.barh(row, min(value, most), color=by_threshold(value, told.get("thresholds")), height=0.7)
        axes.text(most * 1.02, row, written(value, unit), va="center", fontsize=SMALL + 1, color=INK)
    axes.set_yticks(range(len(named)), [name for name, _ in reversed(named)])
    axes.set_xlim(0, most * 1.2)
    axes.set_ylim(-0.6, max(3.4, len(named) - 0.4))
    axes.set_xticks([])
    axes.tick_params(labelsize=SMALL + 0.5, colors=INK, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def numbers(axes: Axes, panel: Mapping[str, Any], answers: Answers, *_: object) -> None:
    """Large figures side by side."""
    told, named = _defaults(panel), _named(panel, answers)
    axes.axis("off")
    plain = panel["options"]["colorMode"] == "none"
    for n, (name, one) in enumerate(named):
        value = one.points[-1][1]
        shade = INK if plain else by_threshold(value, told.get("thresholds"))
        where = (n + 0.5) / len(named)
        axes.text(
            where,
            0.55,
            written(value, told.get("unit", "none")),
            fontsize=19 if len(named) < 5 else 11,
            ha="center",
            va="center",
            color=shade,
        )
        if len(named) > 1:
            axes.text(where, 0.15, name, fontsize=SMALL + 0.5, ha="center", va="center", color=FAINT)


def heat(
    axes: Axes, panel: Mapping[str, Any], answers: Answers, span: tuple[float, float], step: float
) -> None:
    """Buckets over time; the darker, the more."""
    unit = _defaults(panel).get("unit", "none")
    (answer,) = answers
    rows = sorted(answer, key=lambda one: float(one.labels["le"]))
    times = np.arange(span[0], span[1] + step, step)
    counts = np.zeros((len(rows), len(times)))
    for n, one in enumerate(rows):
        for at, value in one.points:
            counts[n, round((at - span[0]) / step)] = value
    each = np.diff(counts, axis=0, prepend=0)
    used = np.flatnonzero(each.max(axis=1) > 0.01)
    low, high = (max(0, used[0] - 1), used[-1] + 2) if used.size else (0, len(rows))
    each = each[low:high]
    edges = np.arange(each.shape[0] + 1)
    shown = np.ma.masked_less(each, 0.01)
    axes.pcolormesh(
        [*times, times[-1] + step], edges, shown, cmap="Blues", norm=LogNorm(0.05, max(1.0, each.max()))
    )
    marks = range(0, each.shape[0], max(1, each.shape[0] // 6))
    axes.set_yticks(
        [mark + 1 for mark in marks], [written(float(rows[low + m].labels["le"]), unit) for m in marks]
    )
    _time_axis(axes, span)


DRAWN: Final[Mapping[str, Callable[[Axes, Mapping[str, Any], Answers, tuple[float, float], float], None]]] = {
    "timeseries": lines,
    "state-timeline": states,
    "bargauge": bars,
    "stat": numbers,
    "heatmap": heat,
    "table": rows,
}
