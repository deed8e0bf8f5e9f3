"""The next engine is on its way up while one is looked at, and none is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .stands import Ahead

ROOT = Path(__file__).parents[2]

# The rig's own fixture in a session of its own, with engines that only note what is done to them.
CONFTEST = """
import os
from contextlib import ExitStack
from types import SimpleNamespace
from tests.rig.conftest import *
from tests.rig import stands


def note(what):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(what + "\\n")


def begun(python, models, model, logs):
    note(f"begin {model.name}")
    running = ExitStack()
    running.callback(note, f"end {model.name}")
    engine = SimpleNamespace(wait_ready=lambda: note(f"ready {model.name}"), version=lambda: "0")
    return stands.Begun(engine, SimpleNamespace(wait_up=lambda: None), None, running)


stands.vllm = begun


@pytest.fixture(scope="session")
def engine_python():
    return None


@pytest.fixture(scope="session")
def model_directories():
    return None
"""
PLAYED = """
import pytest
from types import SimpleNamespace
from conftest import note

A, B, C = (SimpleNamespace(name=name) for name in "ABC")
ids = dict(ids=lambda model: model.name, indirect=True)


@pytest.mark.parametrize("stand", [A, B, C], **ids)
def test_one(stand):
    note(f"test {stand.model.name}")
    assert stand.model is not B


@pytest.mark.parametrize("stand", [A, B], **ids)
def test_another(stand):
    note(f"test {stand.model.name}")


@pytest.mark.skipif(True, reason="takes what is not there")
@pytest.mark.parametrize("stand", [SimpleNamespace(name="D")], **ids)
def test_skipped(stand):
    note("never")
"""


def play(folder: Path, *arguments: str) -> list[str]:
    """What happened in such a session, in order."""
    (folder / "conftest.py").write_text(CONFTEST)
    test = folder / "test_vllm_played.py"
    test.write_text(PLAYED)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = rig: real\n")
    notes = folder / "notes"
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("KVCACHE", "PYTEST"))
    }
    more = {"PYTHONPATH": str(ROOT), "NOTES": str(notes), "KVCACHE_RIG_REPORT": str(folder / "report")}
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *arguments,
        str(test),
    ]
    subprocess.run([sys.executable, *command], cwd=folder, env=inherited | more, check=False, timeout=120)
    return notes.read_text().splitlines()


def test_the_next_engine_starts_once_this_one_is_up(tmp_path: Path) -> None:
    """One ahead, no more; none for tests that may be skipped."""
    assert play(tmp_path) == [
        *("begin A", "ready A", "begin B", "test A", "test A", "end A"),
        *("ready B", "begin C", "test B", "test B", "end B"),
        *("ready C", "test C", "end C"),
    ]


def test_an_engine_that_is_not_needed_any_more_is_ended(tmp_path: Path) -> None:
    """B's first test fails, and that is the end: C was on its way up."""
    assert play(tmp_path, "-x") == [
        *("begin A", "ready A", "begin B", "test A", "test A", "end A"),
        *("ready B", "begin C", "test B", "end B", "end C"),
    ]


def test_a_start_that_failed_is_tried_again_by_who_needs_it() -> None:
    """The error then belongs to the tests of that engine."""
    ahead = Ahead()

    def fails() -> None:
        raise RuntimeError("no port")

    ahead.begin("A", fails)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no port"):
        ahead.take("A", fails)  # type: ignore[arg-type]
