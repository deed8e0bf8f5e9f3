"""An engine with the sidecar beside it, and the next one on its way up while this one is looked at.

An engine spends half a minute on its start with one core, and most of the time after it waits for its client.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .checks import Checks
from .engine import Engine
from .page import Page
from .sglang_engine import SglangEngine
from .sglang_truth import SglangModel
from .sidecar import Sidecar
from .truth import RigModel


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


E = TypeVar("E", Engine, SglangEngine)


@dataclass(frozen=True, slots=True)
class Begun(Generic[E]):
    """A sidecar that has looked for its engine, and that engine on its way up."""

    engine: E
    sidecar: Sidecar
    before_engine: Page
    running: ExitStack
    """Ends both."""


def begin(engine: E, sidecar: Sidecar) -> Begun[E]:
    """The sidecar first, as a native sidecar container would start; the engine is not waited for."""
    with ExitStack() as running:
        running.enter_context(sidecar)
        sidecar.wait_listening()
        before_engine = sidecar.scrape()
        running.enter_context(engine)
        return Begun(engine, sidecar, before_engine, running.pop_all())


def vllm(python: Path, models: Path, model: RigModel, logs: Path) -> Begun[Engine]:
    """A vLLM that sends its traces to its sidecar, and has its tensors measured."""
    directory = models / model.directory
    engine = Engine(
        python, directory, logs / "engine.log", kv_cache_bytes=model.kv_cache_bytes, flags=model.flags
    )
    engine.measure_memory()
    flags = ["--model-config", str(directory), "--context", *map(str, model.fits)]
    sidecar = Sidecar(engine.url, logs / "sidecar.log", flags)
    engine.tracing_to(sidecar.url)
    return begin(engine, sidecar)


def sglang(python: Path, models: Path, model: SglangModel, logs: Path) -> Begun[SglangEngine]:
    """An SGLang that writes `logs / "requests"`; its sidecar is told the address and that directory."""
    request_log = logs / "requests"
    request_log.mkdir()
    written = ("--export-metrics-to-file", "--export-metrics-to-file-dir", str(request_log))
    engine = SglangEngine(python, models / model.directory, logs / "engine.log", (*model.flags, *written))
    flags = ["--context", *map(str, model.fits), "--request-log", str(request_log)]
    return begin(engine, Sidecar(engine.url, logs / "sidecar.log", flags))


class Ahead:
    """Engines begun before their tests: at most one per kind, taken by who needs it."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._begun: dict[Hashable, Begun[Any]] = {}

    def begin(self, key: Hashable, start: Callable[[], Begun[Any]]) -> None:
        """Start one; what goes wrong is found out by who needs it, and starts it again."""
        try:
            self._begun[key] = start()
        except Exception:
            self._begun.pop(key, None)

    def take(self, key: Hashable, start: Callable[[], Begun[E]]) -> Begun[E]:
        """The one begun under that key, else one started now."""
        return self._begun.pop(key, None) or start()

    def close(self) -> None:
        """End those that nobody took."""
        while self._begun:
            self._begun.popitem()[1].running.close()
