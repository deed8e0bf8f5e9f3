"""``plan`` as people call it: flags in, JSON or a page out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    """``plan("meta-llama__Llama-3.1-8B", "--gpu H100")`` -> the JSON it prints."""

    def run(config: str | Path, flags: str = "") -> dict[str, Any]:
        path = config if isinstance(config, Path) else CONFIGS / f"{config}.json"
        assert main(["plan", str(path), *flags.split(), "--output", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert isinstance(told, dict)
        return told

    return run


@pytest.fixture
def page(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The same as text."""

    def run(config: str | Path, flags: str = "") -> str:
        path = config if isinstance(config, Path) else CONFIGS / f"{config}.json"
        assert main(["plan", str(path), *flags.split()]) == 0
        return capsys.readouterr().out

    return run
