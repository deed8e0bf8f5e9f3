"""Small pages made from public bug reports, one trap each, against the right answer beside them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .text import DATA, RECORDINGS, explain

CASES = RECORDINGS / "cases"
EXPECTED: dict[str, dict[str, Any]] = json.loads((CASES / "expected.json").read_text())


def arguments(case: dict[str, Any]) -> list[str]:
    """What the user would have told the exporter; paths are below tests/data/."""
    words: list[str] = case.get("args", [])
    return [str(DATA / word) if word.endswith(".json") else word for word in words]


def test_every_page_has_its_answer() -> None:
    """A page without an answer would be read by nobody."""
    assert {path.stem for path in CASES.glob("*.prom")} == {name for name in EXPECTED if name.startswith("T")}


@pytest.mark.parametrize("name", sorted(p.stem for p in CASES.glob("*.prom")))
def test_case(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each expected series once with its value, each absent one absent for its reason."""
    case = EXPECTED[name]
    got = explain(capsys, ["--metrics", CASES / f"{name}.prom", *arguments(case)])
    # Adapters alone are nothing we read yet; every other case expects something.
    assert case["expect"] or name == "T25_lora_both"
    for expected in case["expect"]:
        series, labels = expected["series"], expected["labels"]
        if expected.get("absent"):
            assert not got.all(series, **labels)
            if "reason" in expected:
                assert got.reason(series) == expected["reason"]
        else:
            tolerance = case.get("tolerance", 0.0)
            assert got.one(series, **labels) == pytest.approx(expected["value"], rel=tolerance, abs=0.0)
            assert got.one(series, **labels) not in case.get("wrong", [])


def test_a_page_of_no_engine_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Reachable, but nothing of an engine on it: down, with the reason, and no figure at all."""
    got = explain(capsys, ["--metrics", CASES / "T05_process_only.prom"])
    assert got.one("kvcache_engine_up") == 0
    assert got.reason("kvcache_engine_up") == "no_engine_families"
    assert not [s for s in got.series if s.labels.get("model_name")]


def test_disagreeing_capacities_are_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    """290,864 tokens against 33.04 sequences of 32,768: the second is taken, and both are named."""
    got = explain(capsys, ["--metrics", CASES / "T18_old_size_line.prom", "--max-model-len", "32768"])
    flagged = got.one(
        "kvcache_exporter_input_contradiction",
        input="kv_cache_size_tokens",
        used="kv_cache_max_concurrency",
        other="kv_cache_size_tokens",
    )
    assert flagged == 1
    assert got.one("kvcache_capacity_tokens") == round(33.04 * 32_768)
