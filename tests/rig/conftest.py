"""Fixtures of the rig: each engine's environment, its models, and an engine with the sidecar beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import hardware, problems, report, stands
from .checks import Ledger, Subject
from .engine import installed_by_hand
from .stands import Begun, E, SglangStand, Stand

_HERE = Path(__file__).parent


_LEDGER = pytest.StashKey[Ledger]()
# The folders of engines that several tests share, by the name of the test file and the model.
_FOLDERS = pytest.StashKey[dict[tuple[str, str | None] | None, Path]]()
_LOGS = pytest.StashKey[dict[str, bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """One ledger per session."""
    config.stash[_LEDGER] = Ledger()
    config.stash[_FOLDERS] = {}
    config.stash[_LOGS] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What kept a test from its checks goes into the report, with the logs of its engine."""
    outcome = yield
    if item.get_closest_marker("rig") is None:
        return outcome
    problems.note(item.config.stash[_LEDGER], item, call, outcome)
    if outcome.failed:
        folders = [item.config.stash[_FOLDERS].get(problems.stand_of(item))]
        folders.append(getattr(item, "funcargs", {}).get("tmp_path"))
        kept = {
            f"{item.path.stem}-{problems.model_of(item) or item.name}-{log.name}": log
            for folder in folders
            if folder is not None
            for log in folder.glob("*.log")
        }
        item.config.stash[_LOGS].update(problems.tails(kept))
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """After the last test of each engine, what is known goes to disk: who is killed later leaves it there."""
    ended = yield
    if item.get_closest_marker("rig") is not None and problems.stand_of(item) != problems.stand_of(nextitem):
        _write(item.config, with_plots=False)
    return ended


def _write(config: pytest.Config, *, with_plots: bool) -> list[dict[str, Any]]:
    ledger = config.stash[_LEDGER]
    results = ledger.results()
    if results:
        directory = report.directory()
        report.write(results, directory, with_plots=with_plots)
        ledger.write_scenes(directory / "scenes")
        logs = config.stash[_LOGS]
        problems.write_logs(logs, directory)
    return results


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """The report: the files, and every check as a line."""
    config.stash[_LEDGER].complete = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    results = _write(config, with_plots=True)
    if not results:
        return
    terminalreporter.section("checks against real engines")
    terminalreporter.write_line(report.as_text(results))
    terminalreporter.write_line(f"report: {report.directory() / 'report.html'}")


def _built_by(script: str) -> Path:
    """The python of the environment that a script of this directory builds if it is not there yet."""
    if os.environ.get("KVCACHE_RIG") == "off":
        pytest.skip("KVCACHE_RIG=off")
    built = subprocess.run(
        [str(_HERE / script)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        pytest.fail(f"no engine to test against:\n{built.stderr}", pytrace=False)
    return Path(built.stdout.strip())


def _models_by(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model directory per name in `models.CONFIGS`."""
    directory = tmp_path_factory.mktemp("models")
    subprocess.run([str(python), str(_HERE / "models.py"), str(directory)], check=True)
    return directory


@pytest.fixture(scope="session")
def gpu() -> str | None:
    """The GPU that was asked for; None on the CPU. Without one where one was asked for, the run fails."""
    if not hardware.wants_gpu():
        return None
    try:
        return hardware.gpu_name()
    except hardware.NoGpuError as error:
        pytest.exit(f"KVCACHE_RIG_GPU=1, but {error}", returncode=1)


@pytest.fixture(scope="session")
def engine_python(gpu: str | None) -> Path:
    """The python of an environment with a real vLLM."""
    return installed_by_hand() or _built_by("vllm_gpu.sh" if gpu else "vllm_cpu.sh")


@pytest.fixture(scope="session")
def sglang_python(gpu: str | None) -> Path:
    """The python of an environment with a real SGLang."""
    if installed_by_hand():
        pytest.skip("only a vLLM is installed here")
    return _built_by("sglang_gpu.sh" if gpu else "sglang_cpu.sh")


@pytest.fixture(scope="session")
def ledger(pytestconfig: pytest.Config) -> Ledger:
    """Where checks are kept: `ledger.of(Subject(engine, version, model)).check(claim, ...)`."""
    return pytestconfig.stash[_LEDGER]


@pytest.fixture(scope="session")
def model_directories(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, written with vLLM's tokenizers."""
    return _models_by(engine_python, tmp_path_factory)


@pytest.fixture(scope="session")
def sglang_models(sglang_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, written with SGLang's tokenizers."""
    return _models_by(sglang_python, tmp_path_factory)


@pytest.fixture(scope="session")
def ahead() -> Iterator[stands.Ahead]:
    """The engines that are started before their tests."""
    one = stands.Ahead()
    yield one
    one.close()


def _next_model(request: pytest.FixtureRequest, here: tuple[str, str]) -> tuple[tuple[str, str], Any] | None:
    """Of the tests after those of `here`, the next that need another engine of this fixture."""
    theirs = [
        ((item.path.name, model.name), model)
        for item in request.session.items
        # What may be skipped may need no engine.
        if item.get_closest_marker("skipif") is None
        and (model := problems.params_of(item).get(str(request.fixturename))) is not None
    ]
    last = max((n for n, (key, _) in enumerate(theirs) if key == here), default=len(theirs))
    return theirs[last + 1] if last + 1 < len(theirs) else None


@contextmanager
def _running(
    request: pytest.FixtureRequest, ahead: stands.Ahead, start: Callable[[Any, Path], Begun[E]]
) -> Iterator[tuple[Begun[E], Path]]:
    """The asked model's engine and sidecar, both up, and their folder; the next engine is on its way up."""
    folders = request.config.stash[_FOLDERS]

    def started(key: tuple[str, str], model: Any) -> Begun[E]:
        factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        folders[key] = factory.mktemp(model.name)
        return start(model, folders[key])

    here = (request.path.name, request.param.name)
    one = ahead.take(here, lambda: started(here, request.param))
    with one.running:
        one.engine.wait_ready()
        one.sidecar.wait_up()
        # Not on a GPU: the driver counts the memory of all who use it.
        if not hardware.wants_gpu() and (following := _next_model(request, here)) is not None:
            ahead.begin(following[0], lambda: started(*following))
        yield one, folders[here]


@pytest.fixture(scope="module")
def stand(
    request: pytest.FixtureRequest,
    engine_python: Path,
    model_directories: Path,
    ledger: Ledger,
    gpu: str | None,
    ahead: stands.Ahead,
) -> Iterator[Stand]:
    """A vLLM of the asked model and its sidecar."""
    with _running(request, ahead, partial(stands.vllm, engine_python, model_directories)) as (one, _):
        checks = ledger.of(Subject("vllm", one.engine.version(), request.param.name, gpu))
        yield Stand(request.param, one.engine, one.sidecar, one.before_engine, checks)


@pytest.fixture(scope="module")
def sglang(
    request: pytest.FixtureRequest,
    sglang_python: Path,
    sglang_models: Path,
    ledger: Ledger,
    gpu: str | None,
    ahead: stands.Ahead,
) -> Iterator[SglangStand]:
    """An SGLang of the asked model and its sidecar."""
    with _running(request, ahead, partial(stands.sglang, sglang_python, sglang_models)) as (one, folder):
        checks = ledger.of(Subject("sglang", one.engine.version(), request.param.name, gpu))
        yield SglangStand(
            request.param, one.engine, one.sidecar, one.before_engine, folder / "requests", checks
        )
