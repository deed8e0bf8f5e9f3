"""Fixtures of the rig: the engine's environment, its models, and an engine with the sidecar beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .engine import Engine
from .page import Page
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


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The python of an environment with a real vLLM, built if it is not there yet."""
    if os.environ.get("KVCACHE_RIG") == "off":
        pytest.skip("KVCACHE_RIG=off")
    built = subprocess.run(
        [str(_HERE / "vllm_cpu.sh")], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        pytest.fail(f"no engine to test against:\n{built.stderr}", pytrace=False)
    return Path(built.stdout.strip())


@pytest.fixture(scope="session")
def model_directories(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model directory per name in `models.CONFIGS`."""
    directory = tmp_path_factory.mktemp("models")
    subprocess.run([str(engine_python), str(_HERE / "models.py"), str(directory)], check=True)
    return directory


@pytest.fixture(scope="module")
def stand(
    request: pytest.FixtureRequest,
    engine_python: Path,
    model_directories: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stand]:
    """The sidecar first, as a native sidecar container would start, then the engine of the asked model."""
    model: RigModel = request.param
    logs = tmp_path_factory.mktemp(model.name)
    directory = model_directories / model.name
    engine = Engine(
        engine_python,
        directory,
        logs / "engine.log",
        kv_cache_bytes=model.kv_cache_bytes,
        flags=model.flags,
    )
    flags = ["--model-config", str(directory), "--context", "512"]
    sidecar = Sidecar(engine.url, logs / "sidecar.log", flags)
    with sidecar:
        sidecar.wait_listening()
        before_engine = sidecar.scrape()
        with engine:
            engine.wait_ready()
            sidecar.wait_up()
            yield Stand(model, engine, sidecar, before_engine)
