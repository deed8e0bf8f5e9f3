"""The generated parts of the documentation: ``python -m exporter.docs README.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from exporter.catalogue import CATALOGUE, RANK, Group
from exporter.kvmath.families import FAMILIES
from exporter.settings import COMMANDS, flags


def metric_table() -> str:
    """Every exported series in Markdown, by group."""
    lines: list[str] = []
    for group in Group:
        lines += [
            f"**{group}**",
            "",
            "| series | type | own labels | from | meaning |",
            "|---|---|---|---|---|",
        ]
        for m in CATALOGUE:
            if m.group is group:
                extra = ", ".join(f"`{label}`" for label in m.labels if label not in RANK)
                lines.append(f"| `{m.name}` | {m.kind} | {extra} | {m.source} | {m.help} |")
        lines.append("")
    return "\n".join(lines)


def settings_table() -> str:
    """Flags of all commands but ``demo`` and ``plan``; environment and file keys follow from them."""
    # A flag has a row for each thing that it is: commands may differ in its default or its meaning.
    rows: dict[str, dict[tuple[str, str], list[str]]] = {}
    for command in ("serve", "explain", "check", "record", "replay"):
        for flag, default, meaning in flags(COMMANDS[command]):
            rows.setdefault(flag, {}).setdefault((default, meaning), []).append(command)
    lines = ["| flag | commands | default | meaning |", "|---|---|---|---|"]
    for flag, several in rows.items():
        for (default, meaning), commands in several.items():
            shown = f"`{default}`" if default else ""
            lines.append(f"| `{flag}` | {', '.join(commands)} | {shown} | {meaning} |")
    return "\n".join([*lines, ""])


def model_types() -> str:
    """Every ``model_type`` whose cache is known, in one paragraph."""
    return ", ".join(f"`{name}`" for name in sorted(FAMILIES)) + ".\n"


SECTIONS = {"metrics": metric_table, "settings": settings_table, "models": model_types}


def with_tables(text: str) -> str:
    """``text`` with what stands between the marks of each section made anew."""
    for name, table in SECTIONS.items():
        begin, end = f"<!-- {name}: generated -->\n", f"<!-- {name}: end -->"
        head, found, rest = text.partition(begin)
        if found:
            _, _, tail = rest.partition(end)
            text = f"{head}{begin}\n{table()}{end}{tail}"
    return text


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(with_tables(file.read_text()))
