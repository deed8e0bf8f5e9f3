"""A session of the rig in which engines fail: the report names them, keeps their logs and is there early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from . import claims, report
from .checks import Ledger, Problem, Subject
from .problems import LOGS, MAX_LOG_BYTES, tails

ROOT = Path(__file__).parents[2]

# The rig's own hooks in a session of their own; engines are stood in for by what goes wrong with them.
PLAYED = """
import os
import pytest
from types import SimpleNamespace
from tests.rig import claims
from tests.rig.checks import Subject

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module")
def stand(request, ledger):
    if request.param.name == "gemma2":
        raise RuntimeError("the engine <died>")
    return ledger.of(Subject("vllm", "0.32.0", request.param.name))


@pytest.mark.parametrize("stand", [SimpleNamespace(name="llama")], indirect=True)
def test_passes(stand):
    stand.check(claims.RUNNING, expected=1, got=1)


@pytest.mark.parametrize("stand", [SimpleNamespace(name="gemma2")], indirect=True)
def test_never_starts(stand):
    pass


def test_fails_plainly(tmp_path):
    (tmp_path / "engine.log").write_text("why it died")
    assert 1 == 2


def test_is_skipped():
    pytest.skip("no such program")


def test_is_killed():
    if os.environ.get("KILLED"):
        os._exit(9)
"""


def play(folder: Path, **environment: str) -> Path:
    """Where the report of such a session is."""
    test = folder / "test_vllm_played.py"
    test.write_text(PLAYED)
    (folder / "conftest.py").write_text("from tests.rig.conftest import *\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = rig: real\n")
    inherited = {
        name: text for name, text in os.environ.items() if not name.startswith(("KVCACHE", "PYTEST"))
    }
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(test)],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT), "KVCACHE_RIG_REPORT": str(folder / "report")} | environment,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=120,
    )
    return folder / "report"


def test_the_report_names_what_was_not_checked(tmp_path: Path) -> None:
    """One comparison passed, and still it is not clean: an engine died and a plain assertion failed."""
    where = play(tmp_path)

    [entry] = [json.loads(path.read_text()) for path in where.glob("*.json")]
    assert (entry["complete"], len(entry["checks"])) == (True, 1)
    assert [(one["test"].split("::")[1], one["outcome"]) for one in entry["problems"]] == [
        ("test_never_starts[stand0]", "error"),
        ("test_fails_plainly", "failed"),
        ("test_is_skipped", "skipped"),
    ]
    markdown = (where / "report.md").read_text()
    assert "No check failed" not in markdown
    assert "Not clean" in markdown
    assert "test_never_starts[stand0]: error: RuntimeError: the engine <died>" in markdown
    assert "the engine &lt;died&gt;" in (where / "report.html").read_text()
    with tarfile.open(where / LOGS) as tar:
        [name] = tar.getnames()
        log = tar.extractfile(name)
        assert log is not None
        assert (name, log.read()) == ("test_vllm_played-test_fails_plainly-engine.log", b"why it died")


def test_a_killed_run_leaves_what_it_had(tmp_path: Path) -> None:
    """Nothing of the session's end runs: what was written after the last engine is there, and says so."""
    where = play(tmp_path, KILLED="1")

    [entry] = [json.loads(path.read_text()) for path in where.glob("*.json")]
    assert (entry["complete"], len(entry["checks"]), entry["problems"][0]["outcome"]) == (False, 1, "error")
    assert "has not come to its end" in (where / "report.md").read_text()


def test_an_engine_that_never_said_its_release_is_named(tmp_path: Path) -> None:
    """SGLang did not start at all; later it did, and the first file is gone."""
    ledger = Ledger()
    ledger.problems.append(Problem("sglang", "test_sglang.py::test_x", "error", "no kernel"))
    ledger.complete = True
    report.write(ledger.results(), tmp_path)
    assert [path.name for path in tmp_path.glob("*.json")] == ["sglang-unknown-cpu.json"]
    assert "sglang, test_sglang.py::test_x: error: no kernel" in (tmp_path / "report.md").read_text()

    ledger.of(Subject("sglang", "0.5.23", "llama")).check(claims.RUNNING, expected=1, got=1)
    report.write(ledger.results(), tmp_path)
    assert [path.name for path in tmp_path.glob("*.json")] == ["sglang-0.5.23-cpu.json"]


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ([], "No check failed."),
        ([Problem("vllm", "t", "skipped", "r")], "No check failed; some tests were skipped, see below."),
        ([Problem("vllm", "t", "failed", "r")], "Not clean: see below."),
    ],
)
def test_only_a_whole_run_is_clean(problems: list[Problem], said: str) -> None:
    """Skipped is said, failed is not clean; where everything was skipped there is no report."""
    ledger = Ledger()
    ledger.complete = True
    ledger.problems += problems
    assert bool(ledger.results()) == (said[:3] == "Not")

    ledger.of(Subject("vllm", "0", "llama")).check(claims.RUNNING, expected=1, got=1)
    assert report.verdict(ledger.results()) == said


def test_logs_are_bounded(tmp_path: Path) -> None:
    """The end of a long log, where the reason is."""
    log = tmp_path / "engine.log"
    log.write_bytes(b"x" * MAX_LOG_BYTES + b"the end")

    [kept] = tails({"a": log, "b": tmp_path / "none.log"}).values()
    assert len(kept) == MAX_LOG_BYTES
    assert kept.endswith(b"the end")
