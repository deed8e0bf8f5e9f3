"""``python -m grafana.preview``: the boards as pictures, from a Prometheus and without a Grafana.

Layout, titles, units, thresholds and legends come from the boards' JSON; the drawing is this program's.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from grafana.build import BOARDS, FOLDER
from grafana.draw import DRAWN
from grafana.look import FAINT, GRID, INK, SMALL
from grafana.source import Source, legend

# Inches: a board is 24 columns wide.
WIDTH: Final = 16.0
ROW: Final = 0.31
HEAD, FOOT = 0.75, 0.35
# Margins of the drawing within its panel: left, right, bottom, top.
MARGINS: Final = {
    "timeseries": (0.68, 0.15, 0.62, 0.4),
    "state-timeline": (1.75, 0.15, 0.5, 0.4),
    "bargauge": (1.75, 0.15, 0.15, 0.4),
    "heatmap": (0.68, 0.15, 0.3, 0.4),
    "stat": (0.1, 0.1, 0.05, 0.3),
    "table": (0.12, 0.12, 0.08, 0.42),
}
FOOTER: Final = "Preview drawn by `python -m grafana.preview` from the board's JSON, without Grafana."
COLOURS: Final = 128  # of the picture: lines and text need no more, and the file is a third


def expanded(
    panels: Sequence[Mapping[str, Any]], source: Source, values: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, Any], Source]]:
    """Every panel with the source to ask, repeated ones once per value; ``values``: variable -> its query."""
    down = 0
    for panel in panels:
        place = dict(panel["gridPos"])
        place["y"] += down
        if not panel.get("repeat"):
            yield {**panel, "gridPos": place}, source
            continue
        name = panel["repeat"]
        # Numbers in their order, +Inf last.
        found = sorted(source.values(values[name]), key=float)
        most = int(panel["maxPerRow"])
        width = 24 // min(most, max(1, len(found)))
        for n, value in enumerate(found):
            at = {**place, "x": n % most * width, "y": place["y"] + n // most * place["h"], "w": width}
            one = value.replace("+", r"\\+")
            asked = Source(
                source.url, source.start, source.end, source.step, source.scrape, {**source.chosen, name: one}
            )
            yield {**panel, "title": panel["title"].replace(f"${name}", value), "gridPos": at}, asked
        down += (len(found) - 1) // most * place["h"]


def picture(board: Mapping[str, Any], source: Source) -> bytes:
    """The board as PNG."""
    queries = {one["name"]: one["query"] for one in board["templating"]["list"] if one["type"] == "query"}
    panels = list(expanded(board["panels"], source, queries))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel, _ in panels)
    height = HEAD + rows * ROW + FOOT
    figure = Figure(figsize=(WIDTH, height), dpi=100, facecolor="#f4f5f7")
    canvas = FigureCanvasAgg(figure)
    figure.text(
        0.012, 1 - 0.28 / height, board["title"], fontsize=15, color=INK, va="center", fontweight="bold"
    )
    figure.text(0.012, 1 - 0.56 / height, board["description"], fontsize=9, color=FAINT, va="center")
    figure.text(0.012, 0.15 / height, FOOTER, fontsize=SMALL, color=FAINT, va="center")
    for panel, asked in panels:
        _panel(figure, panel, asked, height)
    drawn = io.BytesIO()
    canvas.print_png(drawn)  # type: ignore[no-untyped-call]
    packed = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def _panel(figure: Figure, panel: Mapping[str, Any], source: Source, height: float) -> None:
    place = panel["gridPos"]
    unit = WIDTH / 24
    left, width = place["x"] * unit + 0.05, place["w"] * unit - 0.1
    bottom, tall = height - HEAD - (place["y"] + place["h"]) * ROW + 0.04, place["h"] * ROW - 0.08
    if panel["type"] == "row":
        figure.text((left + 0.05) / WIDTH, (bottom + 0.08) / height, panel["title"], fontsize=11, color=INK)
        return
    box = FancyBboxPatch(
        (left / WIDTH, bottom / height),
        width / WIDTH,
        tall / height,
        boxstyle="square,pad=0",
        facecolor="white",
        edgecolor=GRID,
        transform=figure.transFigure,
        zorder=-1,  # behind the drawing
    )
    figure.add_artist(box)
    title = source.filled(panel["title"])
    top = (bottom + tall - 0.2) / height
    figure.text((left + 0.12) / WIDTH, top, title, fontsize=9, color=INK, va="center", fontweight="bold")
    answers = [source.answer(target) for target in panel["targets"]]
    a, b, c, d = MARGINS[panel["type"]]
    if panel["type"] in ("bargauge", "state-timeline"):
        names = [
            legend(target["legendFormat"], one.labels)
            for target, answer in zip(panel["targets"], answers, strict=True)
            for one in answer
        ]
        a = 0.25 + 0.063 * max(map(len, names), default=0)
    axes = figure.add_axes(
        ((left + a) / WIDTH, (bottom + c) / height, (width - a - b) / WIDTH, (tall - c - d) / height)
    )
    if any(answers):
        DRAWN[panel["type"]](axes, panel, answers, (source.start, source.end), source.step)
        return
    axes.axis("off")
    empty = panel["fieldConfig"]["defaults"]["noValue"]
    axes.text(0.5, 0.5, empty, ha="center", va="center", color=FAINT, fontsize=10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a PNG per board."""
    parser = argparse.ArgumentParser(prog="python -m grafana.preview", description=__doc__)
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", help="its URL")
    parser.add_argument("--to", type=Path, default=Path("."), help="folder for the pictures")
    parser.add_argument("--end", type=float, default=time.time(), help="Unix time; default: now")
    parser.add_argument("--hours", type=float, default=3.0, help="how long before that")
    parser.add_argument("--scrape-interval", type=float, default=15.0, help="of the Prometheus, in seconds")
    parser.add_argument(
        "--var", action="append", default=[], metavar="NAME=REGEX", help="choose by a variable"
    )
    parser.add_argument("board", nargs="*", default=list(BOARDS), help="uids; default: all")
    asked = parser.parse_args(arguments)
    chosen = dict(one.split("=", 1) for one in asked.var)
    start = asked.end - asked.hours * 3600
    step = max(15.0, asked.hours * 20)
    source = Source(asked.prometheus, start, asked.end, step, asked.scrape_interval, chosen)
    for uid in asked.board:
        path = asked.to / f"{uid}.png"
        path.write_bytes(picture(json.loads((FOLDER / f"{uid}.json").read_text("utf-8")), source))
        print(path)


if __name__ == "__main__":
    main()
