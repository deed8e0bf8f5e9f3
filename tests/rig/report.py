"""The report of a rig run: Markdown and one HTML page with plots, beside the results as JSON.

`python -m tests.rig.report DIRECTORY` makes the pages anew from the JSON files that lie there.
"""

from __future__ import annotations

import argparse
import html
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checks import read_results, write_results
from .claims import CLAIMS

Results = Sequence[dict[str, Any]]


def directory() -> Path:
    """Where the report goes: KVCACHE_RIG_REPORT, else build/rig-report of the repository."""
    named = os.environ.get("KVCACHE_RIG_REPORT")
    return Path(named) if named else Path(__file__).parents[2] / "build" / "rig-report"


@dataclass(frozen=True, slots=True)
class Row:
    """All comparisons of one claim with one model."""

    engine: str
    model: str
    name: str
    many: int
    failed: int
    example: tuple[Any, Any]
    """Expected and got of the first that failed, else of the one that was furthest off."""
    error: float | None
    """The greatest difference; None where no numbers were compared."""
    tolerance: float

    @property
    def verdict(self) -> str:
        """One word."""
        return "pass" if not self.failed else f"FAIL {self.failed}/{self.many}"


def error_of(check: dict[str, Any]) -> float | None:
    """The difference of one check, where both sides are numbers."""
    expected, got = check["expected"], check["got"]
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return abs(got - expected)
    return None


def rows(results: Results) -> Iterator[Row]:
    """One row per engine, model and claim, in the order in which they were first checked."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for entry in results:
        for check in entry["checks"]:
            key = (f"{entry['engine']} {entry['version']}", check["model"], check["name"])
            grouped.setdefault(key, []).append(check)
    for (engine, model, name), checks in grouped.items():
        failed = [check for check in checks if not check["pass"]]
        shown = failed[0] if failed else max(checks, key=lambda check: error_of(check) or 0.0)
        errors = [error for check in checks if (error := error_of(check)) is not None]
        yield Row(
            engine, model, name, len(checks), len(failed), (shown["expected"], shown["got"]),
            max(errors, default=None), shown["tolerance"],
        )  # fmt: skip


def _number(value: object) -> str:
    return "none" if value is None else f"{value:.10g}" if isinstance(value, int | float) else str(value)


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _cells(row: Row) -> list[str]:
    expected, got = row.example
    return [
        row.engine, row.model, row.name, str(row.many), _number(expected), _number(got),
        _short(row.error), _short(row.tolerance), row.verdict,
    ]  # fmt: skip


HEAD = ["engine", "model", "check", "times", "expected", "got", "worst error", "tolerance", "verdict"]


def as_text(results: Results) -> str:
    """The table for a terminal."""
    lines = [HEAD, *(_cells(row) for row in rows(results))]
    widths = [max(len(line[n]) for line in lines) for n in range(len(HEAD))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*table, verdict(results), *_unchecked(results)])


def _ran(entry: dict[str, Any]) -> str:
    passed = sum(1 for check in entry["checks"] if check["pass"])
    on = entry["gpu"] or "on the CPU"
    of = f"{passed} of {len(entry['checks'])} comparisons pass"
    return f"{entry['engine']} {entry['version']}, {on}, {entry['date']}: {of}"


def _failures(results: Results) -> Iterator[str]:
    for entry in results:
        for check in entry["checks"]:
            if not check["pass"]:
                yield (
                    f"{entry['engine']} {check['model']}, {check['name']} ({check['case']}): expected "
                    f"{_number(check['expected'])}, got {_number(check['got'])}, "
                    f"tolerance {_number(check['tolerance'])}"
                )


def _unchecked(results: Results) -> Iterator[str]:
    """Tests that did not make all of their checks, once each."""
    told = {
        (one["engine"], one["test"], one["outcome"], one["reason"]): None
        for entry in results
        for one in entry.get("problems", ())
    }
    for engine, test, outcome, reason in told:
        yield f"{engine}, {test}: {outcome}: {reason}"


def verdict(results: Results) -> str:
    """One line: clean only where the run ended, no check failed and no test did."""
    problems = [one["outcome"] for entry in results for one in entry.get("problems", ())]
    if any(not entry.get("complete", True) for entry in results):
        return "The run has not come to its end: this is what there is so far."
    if list(_failures(results)) or set(problems) - {"skipped"}:
        return "Not clean: see below."
    return "No check failed." if not problems else "No check failed; some tests were skipped, see below."


def as_markdown(results: Results, plots: Sequence[str]) -> str:
    """The report, with links to the plots that lie beside it."""
    lines = ["# Checks against real engines", ""]
    lines += [f"- {_ran(entry)}" for entry in results]
    failures = list(_failures(results))
    lines += ["", verdict(results), ""]
    for title, ones in (("Failed", failures), ("Not checked", list(_unchecked(results)))):
        lines += [f"## {title}", "", *(f"- {one}" for one in ones), ""] if ones else []
    lines += [f"![{name}]({name}.svg)" for name in plots]
    lines += ["", "| " + " | ".join([*HEAD, "held against"]) + " |", "|" + " --- |" * (len(HEAD) + 1)]
    for row in rows(results):
        lines.append("| " + " | ".join([*_cells(row), _truth(row.name)]) + " |")
    lines += ["", "Expected and got are of the comparison that was furthest off.", ""]
    return "\n".join(lines)


def _truth(name: str) -> str:
    return CLAIMS[name].truth if name in CLAIMS else ""


_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1200px;padding:0 1em;
color:#222}table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.2em .6em;
text-align:left;border-bottom:1px solid #ddd}.bad{background:#fdd}svg{max-width:100%;height:auto}"""


def as_html(results: Results, plots: Sequence[str]) -> str:
    """The report as one page; `plots` are SVG documents."""
    body = ["<h1>Checks against real engines</h1><ul>"]
    body += [f"<li>{html.escape(_ran(entry))}</li>" for entry in results]
    failures = list(_failures(results))
    body += ["</ul>", f"<p>{html.escape(verdict(results))}</p>"]
    for title, ones in (("Failed", failures), ("Not checked", list(_unchecked(results)))):
        if ones:
            listed = "".join(f'<li class="bad">{html.escape(one)}</li>' for one in ones)
            body.append(f"<h2>{title}</h2><ul>{listed}</ul>")
    body += [*plots, "<h2>Every check</h2><table><tr>"]
    body += [f"<th>{html.escape(cell)}</th>" for cell in [*HEAD, "held against", "why this tolerance"]]
    body.append("</tr>")
    for row in rows(results):
        why = CLAIMS[row.name].why if row.name in CLAIMS else ""
        cells = [*_cells(row), _truth(row.name), why]
        marked = ' class="bad"' if row.failed else ""
        body.append(f"<tr{marked}>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    body.append("</table>")
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Checks against real engines</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def write(results: Results, where: Path, *, with_plots: bool = True) -> None:
    """The results as JSON, and both pages; plots only where matplotlib is installed."""
    write_results(list(results), where)
    plots: dict[str, str] = {}
    if with_plots:
        try:
            from .plots import all_plots
        except ImportError:
            pass  # a GPU host may lack matplotlib: the pages can be made anew elsewhere, from the JSON
        else:
            plots = all_plots(results)
    for name, svg in plots.items():
        (where / f"{name}.svg").write_text(svg)
    (where / "report.md").write_text(as_markdown(results, list(plots)))
    (where / "report.html").write_text(as_html(results, list(plots.values())))


def main() -> None:
    """Make the pages anew from the results in a directory."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    where: Path = parser.parse_args().directory
    write(read_results(where), where)


if __name__ == "__main__":
    main()
