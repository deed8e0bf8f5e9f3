"""``python -m alerts.build``: write the rule files anew; ``--check``: only say whether they are current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from alerts.rules import HERE, groups

HEADER: Final = "# Made by `python -m alerts.build` from thresholds.yaml and source/. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, so that an expression reads as one."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _dumped(document: Any) -> str:
    dumped: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True, default_flow_style=False
    )
    return HEADER + dumped


def documents() -> dict[str, str]:
    """File name under ``rules/`` -> its text."""
    made = groups()
    operator = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "kvcache", "labels": {"app.kubernetes.io/name": "kvcache-exporter"}},
        "spec": {"groups": made},
    }
    return {
        "kvcache.rules.yaml": _dumped({"groups": made}),
        "kvcache.prometheusrule.yaml": _dumped(operator),
    }


def stale(folder: Path = HERE / "rules") -> list[str]:
    """Names of files that are not what the source makes."""
    return [
        name
        for name, text in documents().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where ``--check`` found a file out of date."""
    parser = argparse.ArgumentParser(prog="python -m alerts.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    old = stale()
    for name in old:
        if asked.check:
            print(f"out of date: {name}", file=sys.stderr)
        else:
            (HERE / "rules" / name).write_text(documents()[name], encoding="utf-8")
            print(f"written: {name}")
    return 1 if asked.check and old else 0


if __name__ == "__main__":
    raise SystemExit(main())
