"""Which family exists in which release: ``tests/data/engines/*.tsv``, read off the releases' sources."""

from __future__ import annotations

import csv
from pathlib import Path

from exporter.engines.detect import parse_version
from exporter.kvmath.known import Reason, Unavailable

DATA = Path(__file__).parents[2] / "data" / "engines"
LABELS = {"model_name": "m"}


def table(name: str) -> dict[str, dict[str, str]]:
    """family -> release -> cell ("" where that release lacks it)."""
    with (DATA / name).open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    at = {n: head for n, head in enumerate(rows[0]) if head[:1].isdigit()}
    return {
        row[0]: {release: row[n].strip() if n < len(row) else "" for n, release in at.items()}
        for row in rows[1:]
    }


VLLM, SGLANG = table("vllm-metrics.tsv"), table("sglang-metrics.tsv")
VLLM_RELEASES = list(next(iter(VLLM.values())))
SGLANG_RELEASES = list(next(iter(SGLANG.values())))


def since(release: str, *first: int) -> bool:
    number = parse_version(release)
    assert number
    return number >= first


def words(cell: str) -> set[str]:
    """ "h0+1" -> {"h0", "1"}."""
    return {word for word in cell.split("+") if word}


def reason(value: object) -> Reason | None:
    return value.reason if isinstance(value, Unavailable) else None
