"""A table panel: what fits of it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from grafana.look import FAINT, INK, SMALL, by_threshold, mapped
from grafana.source import Series, table
from grafana.units import written


def rows(axes: Axes, panel: Mapping[str, Any], answers: Sequence[Sequence[Series]], *_: object) -> None:
    """A table: what fits into the panel."""
    headings, cells = table(panel, answers)
    axes.axis("off")
    rules = {
        one["matcher"]["options"]: {p["id"]: p["value"] for p in one["properties"]}
        for one in panel["fieldConfig"].get("overrides", ())
    }
    texts: list[list[tuple[str, str]]] = []
    for row in cells:
        texts.append([_cell(value, rules.get(head, {})) for head, value in zip(headings, row, strict=True)])
    widths = [
        max([len(head) * 1.1, *(len(line[n][0]) for line in texts)]) + 2 for n, head in enumerate(headings)
    ]
    total = max(sum(widths), 1)
    left = np.concatenate(([0.0], np.cumsum(widths)[:-1])) / total
    many = max(1, int(panel["gridPos"]["h"] * 1.5) - 3)
    height = 1 / (many + 1.5)
    for x, head in zip(left, headings, strict=True):
        axes.text(x, 1, head, fontsize=SMALL, color=FAINT, va="top", fontweight="bold")
    room = axes.get_window_extent().width / (5.1 * total)
    for n, line in enumerate(texts[:many]):
        for x, width, (text, shade) in zip(left, widths, line, strict=True):
            axes.text(
                x,
                1 - (n + 1.2) * height,
                textwrap.shorten(text, max(4, int(width * room)), placeholder="…") if room < 1 else text,
                fontsize=SMALL,
                color=shade,
                va="top",
            )
    if len(texts) > many:
        axes.text(0, 0, f"… {len(texts) - many} more rows", fontsize=SMALL, color=FAINT, va="bottom")


def _cell(value: object, rule: Mapping[str, Any]) -> tuple[str, str]:
    if value is None:
        return "", INK
    if (words := mapped(value, rule.get("mappings", ()))) is not None:
        return words
    if not isinstance(value, float):
        return str(value), INK
    shade = by_threshold(value, rule.get("thresholds")) if "thresholds" in rule else INK
    if "decimals" in rule and rule.get("unit") == "none":
        return f"{value:.{rule['decimals']}f}", shade
    return written(value, rule.get("unit", "none")), shade
