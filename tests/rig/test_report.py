"""The report: what it says about checks that passed and failed, and that its README has all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from . import claims, report
from .checks import Ledger, Moment, Subject, read_results
from .plots import all_plots

RIG = Path(__file__).parent


@pytest.fixture
def results() -> list[dict[str, Any]]:
    """Two models: one check that passed twice, one that failed, one of no number."""
    ledger = Ledger()
    llama = ledger.of(Subject("vllm", "0.32.0", "llama"))
    llama.check(claims.USED_BLOCKS, expected=7, got=7, case="held")
    llama.check(claims.USED_BLOCKS, expected=9, got=9, case="held longer")
    llama.check(claims.ITL, expected=0.02, got=0.021, case="up to 512 tokens")
    llama.reached(512, 18, 18)
    llama.account.usage.extend([Moment(0.0, 1, 2, 3), Moment(1.0, 4, 5, 6)])
    gemma = ledger.of(Subject("vllm", "0.32.0", "gemma2"))
    gemma.check(claims.USED_TOKENS, expected=None, got=None)
    with pytest.raises(AssertionError):
        gemma.check(claims.RUNNING, expected=3, got=4, case="<b>held</b>")
    ledger.of(Subject("sglang", "0.5.23", "llama"))  # nothing was checked
    return ledger.results()


def test_results_are_what_others_read(results: list[dict[str, Any]], tmp_path: Path) -> None:
    """Engine, release, GPU or null, date, each comparison with its tolerance; no entry without a check."""
    report.write(results, tmp_path)

    assert [path.name for path in tmp_path.glob("*.json")] == ["vllm-0.32.0-cpu.json"]
    (entry,) = read_results(tmp_path)
    assert (entry["engine"], entry["version"], entry["gpu"]) == ("vllm", "0.32.0", None)
    assert entry["date"].endswith("Z")
    assert entry["checks"][2] == {
        "name": "itl_by_tier",
        "model": "llama",
        "case": "up to 512 tokens",
        "expected": 0.02,
        "got": 0.021,
        "tolerance": pytest.approx(0.002),
        "pass": True,
    }
    assert [check["pass"] for check in entry["checks"]] == [True, True, True, True, False]


def test_one_row_per_model_and_check(results: list[dict[str, Any]]) -> None:
    """The comparison that failed is shown, else the one furthest off."""
    rows = list(report.rows(results))

    assert [(row.model, row.name, row.many, row.verdict) for row in rows] == [
        ("llama", "used_blocks", 2, "pass"),
        ("llama", "itl_by_tier", 1, "pass"),
        ("gemma2", "used_tokens", 1, "pass"),
        ("gemma2", "running_sequences", 1, "FAIL 1/1"),
    ]
    assert rows[3].example == (3, 4)
    assert rows[2].error is None


def test_pages_name_what_failed(results: list[dict[str, Any]], tmp_path: Path) -> None:
    """In both forms; the HTML page stands alone and shows no text as markup."""
    report.write(results, tmp_path)
    markdown, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()

    said = "gemma2, running_sequences (<b>held</b>): expected 3, got 4, tolerance 0"
    assert said in markdown
    assert "&lt;b&gt;held" in page
    assert "<b>held" not in page
    assert "4 of 5 comparisons pass" in markdown
    assert "4 of 5 comparisons pass" in page
    assert page.count("<svg") == 3
    assert "src=" not in page
    assert {path.stem for path in tmp_path.glob("*.svg")} == {"usage", "concurrency", "errors"}
    # Made again from the JSON alone, it is the same page.
    before = page
    report.write(read_results(tmp_path), tmp_path)
    assert (tmp_path / "report.html").read_text() == before


def test_plots_are_left_out_where_there_is_nothing_to_plot() -> None:
    """A run of one check has no usage and no concurrency."""
    ledger = Ledger()
    ledger.of(Subject("vllm", "0", "llama")).check(claims.RUNNING, expected=1, got=1)

    assert set(all_plots(ledger.results())) == {"errors"}


def test_the_readme_has_every_claim() -> None:
    """`python -m tests.rig.claims` writes the table anew."""
    readme = (RIG / "README.md").read_text()

    assert claims.with_table(readme) == readme


@pytest.mark.parametrize("path", sorted((RIG / "results").glob("*.json")), ids=lambda path: path.name)
def test_kept_results_are_of_todays_claims(path: Path) -> None:
    """A claim that was renamed would leave results that nobody can look up."""
    entry = json.loads(path.read_text())

    assert {check["name"] for check in entry["checks"]} <= set(claims.CLAIMS)
    assert all(check["pass"] for check in entry["checks"])
