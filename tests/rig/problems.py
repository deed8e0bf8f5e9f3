"""Tests of a session that did not make all of their checks, and the logs of their engines."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from .checks import CheckFailedError, Ledger, Problem

LOGS = "logs-of-problems.tar.gz"
# Enough for a start that failed, with its traceback; the end is what says why.
MAX_LOG_BYTES = 2**20
MAX_REASON = 300


def engine_of(item: pytest.Item) -> str:
    """The engine that a test of this directory is about, by the name of its file."""
    return "sglang" if "sglang" in item.path.name else "vllm"


def params_of(item: pytest.Item) -> Mapping[str, Any]:
    """The parameters of a test, by name."""
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec else {}


def model_of(item: pytest.Item) -> str | None:
    """The name of the model whose engine several tests share; None where a test has an engine of its own."""
    params = params_of(item)
    found = params.get("stand") or params.get("sglang")
    return None if found is None else str(found.name)


def stand_of(item: pytest.Item | None) -> tuple[str, str | None] | None:
    """What the tests of one engine process have in common; a change of it is when the report is written."""
    return None if item is None else (item.path.name, model_of(item))


def note(ledger: Ledger, item: pytest.Item, call: pytest.CallInfo[None], outcome: pytest.TestReport) -> None:
    """Keep what went wrong in one phase of a test; a comparison that failed is in the results already."""
    if outcome.passed or (call.excinfo is not None and call.excinfo.errisinstance(CheckFailedError)):
        return
    kind = "skipped" if outcome.skipped else "failed" if outcome.when == "call" else "error"
    if isinstance(outcome.longrepr, tuple):
        reason = outcome.longrepr[2]
    else:
        reason = call.excinfo.exconly() if call.excinfo is not None else str(outcome.longrepr)
    line = " ".join(reason.split())[:MAX_REASON]
    one = Problem(engine_of(item), f"{item.path.name}::{item.name}", kind, line)
    if one not in ledger.problems:
        ledger.problems.append(one)


def tails(logs: Mapping[str, Path]) -> dict[str, bytes]:
    """Name -> the last of each log that is there, MAX_LOG_BYTES at most."""
    found = {}
    for name, path in logs.items():
        if path.exists():
            with path.open("rb") as log:
                log.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
                found[name] = log.read()
    return found


def write_logs(logs: Mapping[str, bytes], directory: Path) -> None:
    """All of them in one file beside the report; none, and no file, where nothing went wrong."""
    archive = directory / LOGS
    if not logs:
        archive.unlink(missing_ok=True)
        return
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in logs.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
