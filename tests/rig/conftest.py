"""Fixtures of the rig: each engine's environment, its models, and an engine with the sidecar beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import hardware, problems, report
from .checks import Checks, Ledger, Subject
from .engine import Engine, installed_by_hand
from .page import Page
from .sglang_engine import SglangEngine
from .sglang_truth import SglangModel
from .sidecar import Sidecar
from .truth import RigModel

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Stand:
    """One engine and one sidecar, both running."""

    model: RigModel
    engine: Engine
    sidecar: Sidecar
    before_engine: Page
    """What the sidecar served while there was no engine yet."""
    checks: Checks


@dataclass(frozen=True, slots=True)
class SglangStand:
    """One SGLang and one sidecar, both running."""

    model: SglangModel
    engine: SglangEngine
    sidecar: Sidecar
    before_engine: Page
    """What the sidecar served while there was no engine yet."""
    request_log: Path
    """Where the engine writes a line per finished request."""
    checks: Checks


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


@pytest.fixture(scope="module")
def stand(
    request: pytest.FixtureRequest,
    engine_python: Path,
    model_directories: Path,
    tmp_path_factory: pytest.TempPathFactory,
    ledger: Ledger,
    gpu: str | None,
) -> Iterator[Stand]:
    """The sidecar first, as a native sidecar container would start, then the engine of the asked model."""
    model: RigModel = request.param
    logs = tmp_path_factory.mktemp(model.name)
    request.config.stash[_FOLDERS][(request.path.name, model.name)] = logs
    directory = model_directories / model.directory
    engine = Engine(
        engine_python,
        directory,
        logs / "engine.log",
        kv_cache_bytes=model.kv_cache_bytes,
        flags=model.flags,
    )
    engine.measure_memory()
    flags = ["--model-config", str(directory), "--context", *map(str, model.fits)]
    sidecar = Sidecar(engine.url, logs / "sidecar.log", flags)
    engine.tracing_to(sidecar.url)
    with sidecar:
        sidecar.wait_listening()
        before_engine = sidecar.scrape()
        with engine:
            engine.wait_ready()
            sidecar.wait_up()
            checks = ledger.of(Subject("vllm", engine.version(), model.name, gpu))
            yield Stand(model, engine, sidecar, before_engine, checks)


@pytest.fixture(scope="module")
def sglang(
    request: pytest.FixtureRequest,
    sglang_python: Path,
    sglang_models: Path,
    tmp_path_factory: pytest.TempPathFactory,
    ledger: Ledger,
    gpu: str | None,
) -> Iterator[SglangStand]:
    """The sidecar first, told the address and the request log; then the engine of the asked model."""
    model: SglangModel = request.param
    logs = tmp_path_factory.mktemp(model.name)
    request.config.stash[_FOLDERS][(request.path.name, model.name)] = logs
    request_log = logs / "requests"
    engine = SglangEngine(
        sglang_python,
        sglang_models / model.directory,
        logs / "engine.log",
        (*model.flags, "--export-metrics-to-file", "--export-metrics-to-file-dir", str(request_log)),
    )
    request_log.mkdir()
    flags = ["--context", *map(str, model.fits), "--request-log", str(request_log)]
    sidecar = Sidecar(engine.url, logs / "sidecar.log", flags)
    with sidecar:
        sidecar.wait_listening()
        before_engine = sidecar.scrape()
        with engine:
            engine.wait_ready()
            sidecar.wait_up()
            checks = ledger.of(Subject("sglang", engine.version(), model.name, gpu))
            yield SglangStand(model, engine, sidecar, before_engine, request_log, checks)
