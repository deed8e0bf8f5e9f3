"""What the pages under deploy/ and the README's snippet say about files, objects and targets."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from alerts.rules import groups
from exporter import __version__
from tests.alerts.promtool import needed, needs

from .objects import DEPLOY, ROOT, check

PAGES: Final = sorted(DEPLOY.rglob("*.md"))
ALERTS: Final = {rule["alert"] for group in groups() for rule in group["rules"] if "alert" in rule}


def anchors(page: Path) -> set[str]:
    """The anchors of its headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Files, and headings in them."""
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), link
        if anchor:
            assert anchor in anchors(aim), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_alerts_and_targets_exist(page: Path) -> None:
    """Each alert and each make target that it names."""
    text = page.read_text()
    assert set(re.findall(r"\bKVCache[A-Z]\w+", text)) <= ALERTS
    targets = set(re.findall(r"(?m)^\.PHONY: (\w+)$", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"(?:`|^)make (\w+)", text, re.M)) <= targets


def test_files_of_the_commands_exist() -> None:
    """Whatever path under deploy/ or alerts/ a command of the README names."""
    text = (DEPLOY / "README.md").read_text()
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    commands = re.sub(r"(?m)^.*kubectl -n .*$", "", commands)  # deploy/NAME is an object there
    named = re.findall(r"\b(?:deploy|alerts)/[\w./-]+", commands)
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_versions_in_the_commands_are_this_one() -> None:
    """An archive or image of another version does not exist."""
    text = (DEPLOY / "README.md").read_text()
    assert set(re.findall(r"kvcache-exporter[-:](\d+\.\d+\.\d+)", text)) == {__version__}


def test_chart_values_of_the_readme_pass_the_chart() -> None:
    """The file that part a writes."""
    import helm_python as helm

    from deploy.helm.assemble import CHART

    text = (DEPLOY / "README.md").read_text()
    written = re.search(r"cat >monitoring.yaml <<'END'\n(.*?)END\n", text, re.S)
    assert written is not None
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(yaml.safe_load(written[1])))


def test_test_page_fires_for_its_pod_alone(tmp_path: Path) -> None:
    """Part a's override, through the chart, on idle engines: one pod pages, its twin does not."""
    import helm_python as helm

    from deploy.helm.assemble import assemble

    text = (DEPLOY / "README.md").read_text()
    written = re.search(r"cat >test-page.yaml <<'END'\n(.*?)END\n", text, re.S)
    assert written is not None
    values = yaml.safe_load(written[1].replace("POD", "vllm-0"))
    values["prometheusRule"]["enabled"] = True
    with helm.Chart.load(assemble(tmp_path)) as chart:
        chart.validate_schema(chart.merge_values(values))
        made = chart.render(values, name="kvcache", namespace="monitoring")
    spec = yaml.safe_load(made["kvcache-exporter/templates/prometheusrule.yaml"])["spec"]
    kept = needed(spec["groups"], {"KVCacheUsageHigh", "kvcache:alert_threshold:override"})
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": kept}, width=1000))
    usage = 'kvcache_usage_ratio{namespace="llm",pod="POD",target="127.0.0.1:8000",model_name="m",engine="0"}'
    firing = 'ALERTS{alertname="KVCacheUsageHigh",alertstate="firing"}'
    test = {
        "interval": "1m",
        "input_series": [
            {"series": usage.replace("POD", pod), "values": "0x10"} for pod in ("vllm-0", "vllm-1")
        ],
        "promql_expr_test": [
            {"expr": f"count by (pod) ({firing})", "eval_time": when, "exp_samples": samples}
            for when, samples in (("4m", []), ("8m", [{"labels": '{pod="vllm-0"}', "value": 1}]))
        ],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_snippet_of_the_main_readme_is_a_pod() -> None:
    """With the engine that it leaves out: an object that Kubernetes takes, as hardened as the component's."""
    text = (ROOT / "README.md").read_text().partition("## In a pod")[2]
    snippet = re.search(r"```yaml\n(spec:.*?)```", text, re.S)
    assert snippet is not None
    spec: dict[str, Any] = yaml.safe_load(snippet[1])["spec"]
    spec["containers"] = [{"name": "engine", "image": "engine"}]
    spec["volumes"].append({"name": "models", "emptyDir": {}})
    check([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "engine"}, "spec": spec}])
    (sidecar,) = spec["initContainers"]
    component = yaml.safe_load((DEPLOY / "kustomize" / "sidecar" / "sidecar.yaml").read_text())
    (theirs,) = component["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["securityContext"].items() <= theirs["securityContext"].items()
    for key in ("name", "image", "restartPolicy", "resources", "ports"):
        assert sidecar[key] == theirs[key]
