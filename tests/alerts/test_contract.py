"""What the rules say against what the exporter exports, and against their own house rules."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from promql_parser import BinaryExpr

from alerts.rules import HERE, expression, groups, thresholds
from alerts.text import OVERRIDE, POD
from exporter.catalogue import CATALOGUE
from exporter.kvmath.known import Reason
from exporter.requests.tiers import ITL_BOUNDS
from exporter.sources.spellings import VALUES
from exporter.usage import BOUNDS

from . import promql
from .promtool import needs, specs

# Labels that a scrape adds, Prometheus' own series, and labels that recording rules put on.
SCRAPED: Final = {"job", "instance", "namespace", "pod", "cluster"}
PROMETHEUS: Final = {"up"}
RECORDED: Final = {"basis", "source"}
_KNOWN: Final = {metric.name: metric for metric in CATALOGUE}

RULES: Final[list[dict[str, Any]]] = [rule for group in groups() for rule in group["rules"]]
ALERTS: Final = [rule for rule in RULES if "alert" in rule]
RECORDS: Final = {rule["record"] for rule in RULES if "record" in rule}


def family(name: str) -> str | None:
    """The catalogue's entry of a series, its histogram suffix taken away where it is one."""
    if name in _KNOWN:
        return None if _KNOWN[name].kind == "histogram" else name
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    return base if base in _KNOWN and _KNOWN[base].kind == "histogram" else None


EACH: Final = [
    pytest.param(rule, id=f"{n}-{rule.get('record', rule.get('alert'))}") for n, rule in enumerate(RULES)
]


@pytest.mark.parametrize("rule", EACH)
def test_every_series_exists(rule: dict[str, Any]) -> None:
    """A rule over a series that nobody exports is silent for ever."""
    for name in promql.names(rule["expr"]):
        assert name in RECORDS or name in PROMETHEUS or name == OVERRIDE or family(name), name


@pytest.mark.parametrize("rule", EACH)
def test_every_label_exists(rule: dict[str, Any]) -> None:
    """A misspelt label matches nothing, or groups by nothing.

    A label has to be one of the catalogue's families that the rule is made of, over its recording rules.
    """
    known = set(SCRAPED) | RECORDED | {"le"}
    left, seen = promql.names(rule["expr"]), set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        if name == OVERRIDE:
            known |= {"alert", *POD}
        elif found := family(name):
            known |= set(_KNOWN[found].labels)
        left |= {n for r in RULES if r.get("record") == name for n in promql.names(r["expr"])} - seen
    assert promql.asked(rule["expr"]) <= known


@pytest.mark.parametrize("rule", EACH)
def test_no_regex_on_names(rule: dict[str, Any]) -> None:
    """Some services refuse it, and nobody can tell which rules a series is in."""
    assert "__name__" not in rule["expr"]


@pytest.mark.parametrize("rule", EACH)
def test_divisors_are_guarded(rule: dict[str, Any]) -> None:
    """Without traffic a ratio is absent: no NaN, no infinity, and nothing that passes a comparison."""
    for node in promql.walk(promql.parse(rule["expr"])):
        if isinstance(node, BinaryExpr) and str(node.op) == "/":
            guard = promql.bare(node.rhs)
            assert isinstance(guard, BinaryExpr), str(node)
            assert (str(guard.op), str(guard.rhs)) == (">", "0"), str(node)


def labels_of(name: str, within: frozenset[str] = frozenset()) -> set[str]:
    """Labels that a series may carry: the catalogue's, the scrape's, or its recording rules'.

    ``within``: recording rules whose labels are being worked out; one may be made of itself.
    """
    if name in PROMETHEUS:
        return set(SCRAPED)
    if name == OVERRIDE:
        return {"alert", *POD}
    if found := family(name):
        return {*SCRAPED, *_KNOWN[found].labels} | ({"le"} if name.endswith("_bucket") else set())
    below = partial(labels_of, within=within | {name})
    labels = set(SCRAPED) if name in within else set()
    for rule in RULES:
        # What it makes of itself has no labels but those of the rules of that name that begin anew.
        of_itself = name in within and name in promql.names(rule["expr"])
        if rule.get("record") == name and not of_itself:
            labels |= promql.labels(promql.parse(rule["expr"]), below) or set()
            labels |= set(rule.get("labels", ()))
    return labels


@pytest.mark.parametrize("rule", EACH)
def test_both_sides_carry_the_same_labels(rule: dict[str, Any]) -> None:
    """Sides that differ in a label match nothing, and a rule that matches nothing is silent for ever."""
    promql.labels(promql.parse(rule["expr"]), labels_of)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert_is_complete(rule: dict[str, Any]) -> None:
    """Whoever is woken needs what, where, how much, and a page that exists."""
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["for"]
    assert rule["keep_firing_for"]
    told = rule["annotations"]
    assert "$value" in told["description"]
    assert (
        "hreshold" in told["description"]
        or "expected" in told["description"]
        or "objective" in told["description"]
        or "1 is up" in told["description"]
    )
    assert "irst look at" in told["description"]
    assert told["runbook_url"].endswith(f"/{rule['alert']}.md")
    page = HERE / "runbooks" / f"{rule['alert']}.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {rule['alert']}\n")
    for heading in ("Meaning", "Impact", "Diagnosis", "Mitigation", "At 3 a.m."):
        assert f"\n## {heading}\n" in text, heading


def test_every_alert_has_cases_and_every_runbook_an_alert() -> None:
    """An alert without cases is untested; a page without alert is never opened."""
    names = {rule["alert"] for rule in ALERTS}
    assert set(specs()) == names
    assert {page.stem for page in (HERE / "runbooks").glob("KV*.md")} == names


def test_every_record_has_a_reader() -> None:
    """What nobody reads only costs: a rule or its text, a runbook, a board of ours, or README for others'."""
    name = re.compile(r"\bkvcache:[a-z0-9_:]*[a-z0-9]")
    pages = [
        *(HERE / "runbooks").glob("*.md"),
        HERE / "README.md",
        *(HERE.parent / "grafana").glob("*.py"),
    ]
    read = {found for page in pages for found in name.findall(page.read_text(encoding="utf-8"))}
    for rule in RULES:
        texts = " ".join([rule["expr"], *rule.get("annotations", {}).values()])
        read |= set(name.findall(texts)) - {rule.get("record")}
    assert not RECORDS - read


def test_runbooks_name_flags_of_both_engines() -> None:
    """The other engine refuses a flag that it does not know, and does not come back from the restart."""
    both = [
        (VALUES["vllm"]["max_model_len"][0], VALUES["sglang"]["max_model_len"][0]),
        ("--gpu-memory-utilization", "--mem-fraction-static"),
        ("--max-num-seqs", "--max-running-requests"),
    ]
    told = 0
    for page in (HERE / "runbooks").glob("*.md"):
        for line in page.read_text(encoding="utf-8").splitlines():
            for vllm, sglang in both:
                assert (vllm in line) == (sglang in line), f"{page.name}: {line}"
                if vllm in line:
                    assert f"`{vllm}` (vLLM) or `{sglang}` (SGLang)" in line, f"{page.name}: {line}"
                    assert "restart" in line, f"{page.name}: {line}"
                    told += 1
    assert told


def test_every_missing_input_has_a_remedy() -> None:
    """Whoever gets the ticket reads its reason, and looks for it under Mitigation."""
    page = (HERE / "runbooks" / "KVCacheInputMissing.md").read_text(encoding="utf-8")
    remedies = page.split("## Mitigation")[1].split("\n## ")[0]
    told = {
        word for line in remedies.splitlines() for word in re.findall(r"`([a-z_]+)`", line.split(": ")[0])
    }
    assert told == set(thresholds()["input_missing"]["reasons"].split("|"))


def test_queries_of_runbooks_exist() -> None:
    """At night nobody repairs a query: every series a runbook names is exported or recorded."""
    for page in (HERE / "runbooks").glob("*.md"):
        for name in re.findall(r"\bkvcache[_:][a-z0-9_:]+", page.read_text(encoding="utf-8")):
            assert name in RECORDS or name == OVERRIDE or family(name) or name in _KNOWN, (
                f"{page.name}: {name}"
            )


def test_queries_of_runbooks_are_promql(tmp_path: Path) -> None:
    """promtool has no check of a query, so each becomes a rule."""
    rules = [
        {"record": "x:y:z", "labels": {"page": page.stem, "line": str(n)}, "expr": line}
        for page in sorted((HERE / "runbooks").glob("*.md"))
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        for n, line in enumerate(block.splitlines())
        if line and not line.startswith("#")
    ]
    assert len(rules) > len(ALERTS)
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = subprocess.run(
        [needs("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_texts_name_series_that_exist() -> None:
    """The first thing to look at must be there."""
    for rule in ALERTS:
        for name in re.findall(r"\bkvcache[_:][a-z0-9_:]*[a-z0-9]", rule["annotations"]["description"]):
            assert name in RECORDS or name == OVERRIDE or name in _KNOWN, name


def test_boundary_is_a_bucket_of_the_histogram() -> None:
    """A le that does not exist selects nothing, and the alert is silent for ever."""
    numbers = thresholds()["usage_high_p95"]
    assert numbers["boundary"] in [str(bound) for bound in BOUNDS]
    assert float(numbers["boundary"]) == thresholds()["usage_high"]["ratio"]


def test_floor_of_itl_is_where_buckets_are_fine() -> None:
    """11 ms and 22 ms must lie in different buckets of ours, above the floor of the alert."""
    assert sum(0.011 <= bound < 0.022 for bound in ITL_BOUNDS) >= 3


def test_reasons_are_split_knowingly() -> None:
    """A new reason has to be put on one side: something to mend, or a state."""
    states = {
        *("not_reported", "no_traffic", "model_weights", "gpu_bandwidth", "speculative_decoding"),
        *(
            "attention_free",
            "several_cache_groups",
            "window_pool",
            "set_by_hand",
            "prefix_caching_off",
            "idle",
        ),
        "no_engine_families",  # KVCacheEngineDown
    }
    mended = set(thresholds()["input_missing"]["reasons"].split("|"))
    assert mended | states == {str(reason) for reason in Reason}
    assert not mended & states


def test_prometheusrule_holds_the_same_groups() -> None:
    """One source, two forms: an operator's object must not say anything else."""
    plain = yaml.safe_load((HERE / "rules" / "kvcache.rules.yaml").read_text())
    wrapped = yaml.safe_load((HERE / "rules" / "kvcache.prometheusrule.yaml").read_text())
    assert wrapped["kind"] == "PrometheusRule"
    assert wrapped["spec"]["groups"] == plain["groups"]


def test_source_holds_no_number_of_its_own() -> None:
    """A threshold that hides in the source is one that nobody finds."""
    source = yaml.safe_load(
        re.sub(r"<<[a-z0-9_.]+>>", "PLACE", (HERE / "source" / "alerting.yaml").read_text())
    )
    for alert in source["groups"][0]["alerts"]:
        # 0 and 1 are up, down and nothing; neither is a threshold.
        assert not re.findall(r"(?<![\w.])(?:[2-9]|\d{2,}|\d*\.\d+)(?![\w.])", expression(alert)), alert[
            "alert"
        ]
