"""The plots of a report, as SVG documents."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from .report import error_of, rows

# Text stays text, and the same figures give the same file.
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rig",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_OURS, _ENGINE, _TRUTH = "#0072b2", "#e69f00", "#444444"  # told apart by the colour-blind too


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _usage(results: Sequence[dict[str, Any]]) -> Figure | None:
    series = [
        (f"{entry['engine']} {entry['version']}, {model}", moments)
        for entry in results
        for model, moments in entry["usage"].items()
    ]
    if not series:
        return None
    figure, axes = plt.subplots(
        len(series), 1, figsize=(10, 2.6 * len(series)), squeeze=False, layout="constrained"
    )
    for axis, (title, moments) in zip(axes[:, 0], series, strict=True):
        at = [moment["at"] for moment in moments]
        axis.step(at, [m["truth"] for m in moments], where="post", color=_TRUTH, label="client", linewidth=3,
                  alpha=0.35)  # fmt: skip
        axis.step(at, [m["engine"] for m in moments], where="post", color=_ENGINE, label="engine's page")
        axis.step(at, [m["ours"] for m in moments], where="post", color=_OURS, label="exporter, at its poll",
                  linestyle="--")  # fmt: skip
        axis.set(title=title, xlabel="seconds", ylabel="blocks or tokens in use", ylim=(0, None))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


def _concurrency(results: Sequence[dict[str, Any]]) -> Figure | None:
    points = [
        (f"{entry['engine']} {model}\n{one['context']}", one["predicted"], one["reached"])
        for entry in results
        for model, ones in entry["reached"].items()
        for one in ones
    ]
    if not points:
        return None
    figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
    places = range(len(points))
    axis.bar([p - 0.2 for p in places], [p[1] for p in points], 0.4, color=_OURS, label="predicted")
    axis.bar([p + 0.2 for p in places], [p[2] for p in points], 0.4, color=_ENGINE, label="reached")
    axis.set_xticks(list(places), [p[0] for p in points], rotation=45, ha="right", fontsize=7)
    axis.set(title="Sequences side by side, by model and context", ylabel="sequences")
    axis.legend()
    return figure


def _errors(results: Sequence[dict[str, Any]]) -> Figure | None:
    shares: dict[str, set[float]] = {}
    for entry in results:
        for check in entry["checks"]:
            error = error_of(check)
            if error is not None:
                scale = abs(check["expected"]) or 1.0
                shares.setdefault(check["name"], set()).add(100 * error / scale)
    if not shares or not list(rows(results)):
        return None
    names = sorted(shares, reverse=True)
    figure, axis = plt.subplots(figsize=(10, 0.24 * len(names) + 1.2), layout="constrained")
    for place, name in enumerate(names):
        axis.plot(
            sorted(shares[name]), [place] * len(shares[name]), "o", color=_OURS, alpha=0.5, markersize=4
        )
    axis.set_yticks(range(len(names)), names)
    axis.set(title="Error of every check", xlabel="percent of the expected value (of 1 where that is 0)")
    axis.set_xscale("symlog", linthresh=1e-6)
    axis.set_xlim(left=-2e-7)
    return figure


def all_plots(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Name -> SVG of each plot that there is something for."""
    made: dict[str, str] = {}
    with mpl.rc_context(_RC):
        for name, draw in (("usage", _usage), ("concurrency", _concurrency), ("errors", _errors)):
            figure = draw(results)
            if figure is not None:
                made[name] = _svg(figure)
    return made
