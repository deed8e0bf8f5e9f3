"""Source and thresholds -> rule groups, as Prometheus has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from alerts import text

HERE: Final = Path(__file__).parent
_PLACE: Final = re.compile(r"<<([a-z0-9_]+)\.([a-z0-9_]+)>>")


class SourceError(ValueError):
    """The source or the thresholds do not fit together."""


def thresholds(path: Path = HERE / "thresholds.yaml") -> dict[str, dict[str, Any]]:
    """Every number, by section."""
    read: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return read


def filled(source: str, numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """``source`` with ``<<section.name>>`` replaced.  Raises SourceError for an unknown one."""

    def one(found: re.Match[str]) -> str:
        try:
            return str(numbers[found[1]][found[2]])
        except KeyError:
            raise SourceError(f"thresholds.yaml has no {found[1]}.{found[2]}") from None

    return _PLACE.sub(one, source)


def expression(alert: Mapping[str, Any]) -> str:
    """The alert's PromQL: measure, comparison, the user's own thresholds by pod, guard."""
    measure = alert["measure"]
    if "compare" not in alert:
        compared = measure
    elif alert.get("override"):
        pod = ", ".join(text.POD)
        own = f'{text.OVERRIDE}{{alert="{alert["alert"]}"}}'
        # Two overrides for one pod would be an error that silences everybody's alert; max makes it one.
        compared = (
            "(\n"
            f"  {measure} {alert['compare']} on ({pod}) group_left () max by ({pod}) ({own})\n"
            f"  or (({measure} unless on ({pod}) {own}) {alert['compare']} {alert['threshold']})\n"
            ")"
        )
    else:
        compared = f"{measure} {alert['compare']} {alert['threshold']}"
    return "\n".join(filter(None, (compared, alert.get("guard", "").strip())))


def _alerting(alert: Mapping[str, Any], numbers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    name, unit, times = alert["alert"], alert["unit"], numbers[alert["times"]]
    limit = alert.get("limit")
    if limit is None:
        limit = text.limit(name, alert["threshold"], unit, override=bool(alert.get("override")))
    spelt = {"where": text.WHERE, "value": text.value(unit), "limit": limit}

    def put(template: str) -> str:
        return re.sub(r"<<(where|value|limit)>>", lambda found: spelt[found[1]], template.strip())

    summary = put(alert["summary"])
    return {
        "alert": name,
        "expr": expression(alert),
        "for": times["for"],
        "keep_firing_for": times["keep"],
        "labels": {"severity": alert["severity"]},
        "annotations": {
            "summary": summary,
            "description": put(alert["description"]),
            "runbook_url": f"{numbers['runbooks']['base_url']}{name}.md",
            "dashboard": f"{numbers['dashboards']['base_url']}kvcache-{alert['board']}",
        },
    }


def groups(
    numbers: Mapping[str, Mapping[str, Any]] | None = None, source: Path = HERE / "source"
) -> list[Any]:
    """All rule groups, recording rules first.  Raises SourceError."""
    numbers = thresholds() if numbers is None else numbers
    made: list[Any] = []
    for name in ("recording.yaml", "alerting.yaml"):
        read = yaml.safe_load(filled((source / name).read_text(encoding="utf-8"), numbers))
        for group in read["groups"]:
            rules = [
                {key: value for key, value in rule.items() if key != "why"} for rule in group.get("rules", ())
            ]
            rules += [_alerting(alert, numbers) for alert in group.get("alerts", ())]
            made.append({"name": group["name"], "interval": group["interval"], "rules": rules})
    return made
