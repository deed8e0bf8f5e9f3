"""Did Prometheus take over our rules and our monitor?  Exit status 0 if so, else 1 and why not.

A selector that does not match is silent everywhere else: objects are there, and nobody reads them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import httpx

PAUSE_S = 2.0


def missing_rules(client: httpx.Client, groups: Sequence[str]) -> list[str]:
    """What is wrong with the rule groups, in words."""
    if not groups:
        return []
    answer = client.get("/api/v1/rules").raise_for_status().json()["data"]["groups"]
    rules = {group["name"]: group["rules"] for group in answer}
    wrong = [f"no rule group {name}" for name in groups if name not in rules]
    if wrong:
        wrong.append("its ruleSelector or ruleNamespaceSelector does not select the PrometheusRule: labels?")
    wrong += [
        f"rule {rule['name']}: {rule.get('lastError', 'error')}"
        for name in groups
        for rule in rules.get(name, ())
        if rule["health"] == "err"
    ]
    return wrong


def missing_monitor(client: httpx.Client, job: str, up: bool) -> list[str]:
    """What is wrong with the scrape job; ``up``: one of its targets must answer."""
    if not job:
        return []
    config = client.get("/api/v1/status/config").raise_for_status().json()["data"]["yaml"]
    if not any(line.strip().removeprefix("- ") == f"job_name: {job}" for line in config.splitlines()):
        return [
            f"no scrape job {job}",
            "its podMonitorSelector or podMonitorNamespaceSelector does not select the PodMonitor: labels?",
        ]
    if not up:
        return []
    found = client.get("/api/v1/targets", params={"state": "active"}).raise_for_status().json()
    targets = [target for target in found["data"]["activeTargets"] if target["scrapePool"] == job]
    if any(target["health"] == "up" for target in targets):
        return []
    return [f"{job} has no target up", *(f"{t['scrapeUrl']}: {t['lastError']}" for t in targets)]


def main(words: Sequence[str] | None = None) -> int:
    """Look until nothing is missing or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="of Prometheus")
    parser.add_argument("--timeout", type=float, required=True, help="seconds")
    parser.add_argument("--group", action="append", default=[], help="name of a rule group")
    parser.add_argument("--job", default="", help="name of a scrape job")
    parser.add_argument("--up", action="store_true", help="one of the job's targets must be up")
    asked = parser.parse_args(words)
    end = time.monotonic() + asked.timeout
    with httpx.Client(base_url=asked.url, timeout=10) as client:
        while True:
            try:
                wrong = missing_rules(client, asked.group) + missing_monitor(client, asked.job, asked.up)
            except (httpx.HTTPError, KeyError, ValueError) as error:
                wrong = [f"{asked.url} does not answer as Prometheus: {type(error).__name__}: {error}"]
            if not wrong:
                print(f"Prometheus has {len(asked.group)} rule groups and job {asked.job or '(not asked)'}")
                return 0
            if time.monotonic() >= end:
                print(*wrong, sep="\n", file=sys.stderr)
                return 1
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    raise SystemExit(main())
