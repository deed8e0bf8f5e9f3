"""Short test cases -> what `promtool test rules` reads, and running it.

A case file (``cases/<Alert>.yaml``) lists series by name; the labels that a scrape in Kubernetes and the
exporter would give them (:data:`SCRAPE`, :data:`ENGINE`) are added, each family getting those that the
catalogue knows.
``expect`` maps a time to "quiet", "pending N" or "firing N": how many alerts of that name there are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from alerts.rules import thresholds
from exporter.catalogue import CATALOGUE

CASES: Final = Path(__file__).parent / "cases"
SCRAPE: Final = {"job": "kv", "instance": "10.0.0.1:9844", "namespace": "llm", "pod": "vllm-0"}
ENGINE: Final = {"target": "127.0.0.1:8000", "model_name": "llama", "engine": "0"}
_KNOWN: Final = {metric.name: metric.labels for metric in CATALOGUE}
# The exporter's own, one for all its targets.
_OF_NO_TARGET: Final = {"kvcache_exporter_build_info"}
_SERIES: Final = re.compile(r"^(?P<name>[a-zA-Z_:]+)(?:\{(?P<labels>.*)\})?$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_SUFFIX: Final = re.compile(r"_(bucket|count|sum)$")


def needs(program: str) -> str:
    """The program's path; the test is skipped where it is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (make programs)")
    return path


def family(name: str) -> str:
    """``x_bucket`` -> ``x`` for histograms of the catalogue."""
    return name if name in _KNOWN else _SUFFIX.sub("", name)


def series(spelt: str) -> str:
    """``name{a="b"}`` with the labels it would carry beside one engine; an empty value takes one away."""
    found = _SERIES.match(spelt)
    assert found is not None, spelt
    labels = dict(SCRAPE)
    if found["name"] not in _OF_NO_TARGET:
        labels |= {k: v for k, v in ENGINE.items() if k in _KNOWN.get(family(found["name"]), ())}
    own = dict(_LABEL.findall(found["labels"] or ""))
    labels = {k: v for k, v in {**labels, **own}.items() if v}
    return found["name"] + "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def histogram(spelt: str, phases: Sequence[Sequence[Any]], bounds: Sequence[float]) -> list[dict[str, str]]:
    """Series of a histogram, a sample a minute.

    ``phases``: [minutes, {value: observations a minute}], one after the other; ``bounds``: the ``le`` kept.
    """
    found = _SERIES.match(spelt)
    assert found is not None, spelt
    own = found["labels"] or ""

    def run(rates: Sequence[tuple[int, float]]) -> str:
        parts, level = ["0"], 0.0
        for minutes, rate in rates:
            parts.append(f"{level + rate:g}+{rate:g}x{minutes - 1}")
            level += rate * minutes
        return " ".join(parts)

    made: list[dict[str, str]] = []
    for bound in (*bounds, float("inf")):
        le = "+Inf" if bound == float("inf") else f"{bound:g}"
        rates = [(m, float(sum(n for v, n in seen.items() if v <= bound))) for m, seen in phases]
        made.append({"series": series(f'{found["name"]}_bucket{{{own},le="{le}"}}'), "values": run(rates)})
        if le == "+Inf":
            made.append({"series": series(f"{found['name']}_count{{{own}}}"), "values": run(rates)})
    sums = [(m, float(sum(v * n for v, n in seen.items()))) for m, seen in phases]
    made.append({"series": series(f"{found['name']}_sum{{{own}}}"), "values": run(sums)})
    return made


def strangers(alert: str, compare: str) -> list[dict[str, str]]:
    """Thresholds of the user's that are meant for somebody else: each misses the engine by one label.

    Their value would make anything fire, so a rule that minds them fails its quiet cases, and one that leaves
    the engine out because of them its firing ones.
    """
    pod = {"namespace": "llm", "pod": "vllm-0", "target": "127.0.0.1:8000"}
    wrong = ({"cluster": "x"}, {"namespace": "x"}, {"pod": "x"}, {"target": "x"}, {"alert": "x"})
    made = []
    for one in wrong:
        labels = ",".join(f'{k}="{v}"' for k, v in {"alert": alert, **pod, **one}.items())
        row = f"kvcache:alert_threshold:override{{{labels}}}"
        made.append({"series": row, "values": ("-1" if compare == ">" else "1e12") + "+0x500"})
    return made


def _input(spec: Mapping[str, Any], case: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = strangers(spec["alert"], spec["override"]) if "override" in spec else []
    rows += [{"series": series(name), "values": values} for name, values in case.get("series", {}).items()]
    for name, told in case.get("histograms", {}).items():
        rows += histogram(name, told["phases"], told["bounds"])
    return rows


def _expected(alert: str, when: str, what: str) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    for part in what.split(",") if what != "quiet" else ():
        state, many = part.split()
        samples.append({"labels": f'{{alertstate="{state}"}}', "value": int(many)})
    expr = f'count by (alertstate) (ALERTS{{alertname="{alert}"}})'
    return {"expr": expr, "eval_time": when, "exp_samples": samples}


def _told(alert: str, text: Mapping[str, Any], severity: str, board: str) -> dict[str, Any]:
    links = {name: thresholds()[name]["base_url"] for name in ("runbooks", "dashboards")}
    labels = {
        k: v for k, v in {**SCRAPE, **ENGINE, "severity": severity, **text.get("labels", {})}.items() if v
    }
    annotations = {
        "summary": text["summary"],
        "description": " ".join(text["description"].split()),
        "runbook_url": f"{links['runbooks']}{alert}.md",
        "dashboard": f"{links['dashboards']}kvcache-{board}",
    }
    return {
        "eval_time": text["at"],
        "alertname": alert,
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
    }


def document(spec: Mapping[str, Any], rules: Path, name: str) -> dict[str, Any]:
    """The promtool test file of one case; rules are evaluated every minute, or ``every`` so often."""
    alert = spec["alert"]
    [case] = [case for case in spec["cases"] if case["name"] == name]
    test: dict[str, Any] = {
        "name": name,
        "interval": "1m",
        "input_series": _input(spec, case),
        "promql_expr_test": [_expected(alert, when, what) for when, what in case.get("expect", {}).items()],
    }
    for expr, told in case.get("values", {}).items():
        rows = [{"labels": labels, "value": value} for labels, value in told.get("samples", {}).items()]
        test["promql_expr_test"].append({"expr": expr, "eval_time": told["at"], "exp_samples": rows})
    if "text" in case:
        test["alert_rule_test"] = [_told(alert, case["text"], spec["severity"], spec["board"])]
    # Without an order promtool 2.42 takes groups as a hash map has them: alerts would see this minute's
    # ratios or the last one's.
    order = [group["name"] for group in yaml.safe_load(rules.read_text())["groups"]]
    return {
        "rule_files": [str(rules)],
        "evaluation_interval": case.get("every", "1m"),
        "group_eval_order": order,
        "tests": [test],
    }


def needed(groups: Sequence[Mapping[str, Any]], names: set[str]) -> list[dict[str, Any]]:
    """The groups cut down to some rules and those that they are made from: the others cost time only."""
    made = {rule.get("record", rule.get("alert")) for group in groups for rule in group["rules"]}
    wanted, left = set[str](), set(names)
    while left:
        name = left.pop()
        wanted.add(name)
        for group in groups:
            for rule in group["rules"]:
                if name in (rule.get("record"), rule.get("alert")):
                    left |= (set(re.findall(r"kvcache:[a-z0-9_:]+", rule["expr"])) & made) - wanted
    kept = [
        {**group, "rules": [r for r in group["rules"] if r.get("record", r.get("alert")) in wanted]}
        for group in groups
    ]
    return [group for group in kept if group["rules"]]


def asked(spec: Mapping[str, Any]) -> set[str]:
    """Rules that a case file asks for: its alert, and recording rules by name."""
    named = {name.split("{")[0] for case in spec["cases"] for name in case.get("values", ())}
    return {spec["alert"], *named}


def run_case(
    spec: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], folder: Path, name: str
) -> subprocess.CompletedProcess[str]:
    """`promtool test rules` on one case of a case file against ``groups``."""
    rules = folder / f"{spec['alert']}.rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": needed(groups, asked(spec))}, sort_keys=False, width=1000))
    file = folder / f"{spec['alert']}.test.yaml"
    file.write_text(yaml.safe_dump(document(spec, rules, name), sort_keys=False, width=1000))
    return subprocess.run(
        [needs("promtool"), "test", "rules", str(file)],
        # Its life is short and its memory small: less collecting of garbage saves a fifth of the time.
        env={**os.environ, "GOGC": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@cache
def specs() -> dict[str, dict[str, Any]]:
    """Alert -> its case file."""
    read = [yaml.safe_load(path.read_text()) for path in sorted(CASES.glob("*.yaml"))]
    return {spec["alert"]: spec for spec in read}
