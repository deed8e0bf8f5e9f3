"""``explain``: one readout of an engine or of saved files, and out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from exporter import explain
from exporter.access import engine_client
from exporter.collect import EngineCollector
from exporter.derive.inputs import NO_WEIGHTS, Model
from exporter.engines.info import parse_document, read_documents
from exporter.fetch import Failure, FetchError
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.model import read_model
from exporter.lookup import load_model
from exporter.settings import CommandSettings, ExplainSettings, ServeSettings, TargetSettings
from exporter.target import TargetState

if TYPE_CHECKING:
    from exporter.fleet import Watch

MAX_FILE_BYTES = 64 * 2**20


def explain_once(settings: ExplainSettings) -> int:
    """Print the readout; 1 where there is none."""
    if sum(map(bool, (settings.target, settings.metrics, settings.recording))) != 1:
        raise ValueError("give one of --target URL, --metrics FILE and --recording FILE")
    if settings.target:
        states = asyncio.run(_from_engines(settings))
    else:
        states = [_from_recording(settings) if settings.recording else _from_files(settings)]
    if settings.output == "json":
        told = [explain.as_dict(state) for state in states]
        print(json.dumps(told if len(told) > 1 else told[0], indent=1))
    elif settings.output == "text":
        print("\n".join(explain.as_text(state) for state in states), end="")
    else:
        registry = CollectorRegistry()
        registry.register(EngineCollector(lambda: states, lambda: states[0].last_success or 0.0))
        sys.stdout.write(generate_latest(registry).decode())
    # A page that is no engine's is explained, too; a page that could not be read is not.
    good = [s.up or s.last_attempt_failed is Failure.NO_ENGINE_FAMILIES for s in states]
    return 0 if all(good) else 1


async def _from_engines(settings: ExplainSettings) -> list[TargetState]:
    watch = watch_of(settings, settings.target)
    for watcher in watch.watchers:
        async with engine_client(watcher.target) as client:
            await watcher.poll(client)
            await watcher.settled()
    return list(watch.states)


def watch_of(settings: CommandSettings, targets: Sequence[TargetSettings]) -> Watch:
    """What ``serve`` would watch with these settings."""
    from exporter.fleet import Watch  # noqa: PLC0415

    ours = set(type(settings).model_fields)
    shared = ours & set(ServeSettings.model_fields) - {"target", "config_file"}
    return Watch(ServeSettings(target=list(targets), **settings.model_dump(include=shared)))


def _from_files(settings: ExplainSettings) -> TargetState:
    assert settings.metrics is not None  # noqa: S101
    target = TargetSettings(url="http://file", name=settings.metrics.name).with_common(settings)
    state = TargetState(target, settings.context, 1.0)
    documents = [parse_document(_text(path)) for path in settings.engine_info]
    for path, document in zip(settings.engine_info, documents, strict=True):
        if isinstance(document, Unavailable):
            raise ValueError(f"{path}: {document.detail}")  # noqa: TRY004  (bad input, not a bad type)
    pages = [path for path in (settings.previous, settings.metrics) if path]
    for at, path in enumerate(pages):
        state.fetches += 1
        try:
            reading = state.read(_text(path))
        except FetchError as error:
            state.fail(error.reason)
            print(f"{path}: {error}", file=sys.stderr)
            continue
        engine = read_documents(documents, reading.page.software)
        state.learn(engine, None)
        state.model = load_model(settings.model_config_path, engine.model, allow_hub=False)
        state.accept(reading, float(at))
    return state


def _from_recording(settings: ExplainSettings) -> TargetState:
    """The page of the moment asked for, and the one before it, as a poll would have left them."""
    from exporter.recording.reader import read  # noqa: PLC0415

    assert settings.recording is not None  # noqa: S101
    recording = read(settings.recording)
    header = recording.header
    own = settings.model_dump(include=set(TargetSettings.model_fields) - {"url", "name"}, exclude_unset=True)
    target = header.target("http://recording", settings.recording.name, **own)
    state = TargetState(target, settings.context, 1.0)
    last = recording.frames[-1].at_seconds
    if settings.at is not None and settings.at > last:
        raise ValueError(f"{settings.recording} ends {last:.1f} s after its first page")
    until = recording.index_at(settings.at) if settings.at is not None else len(recording.frames) - 1
    state.learn(read_documents(header.endpoints.values(), header.software), header.command_line)
    if settings.model_config_path is not None:
        state.model = load_model(settings.model_config_path, None, allow_hub=False)
    elif header.config is not None:
        weights = NO_WEIGHTS if header.weights_bytes is None else header.weights_bytes
        shape = read_model(header.config)
        state.model = Model(shape, header.config_source, str(settings.recording), weights)
    else:
        state.model = Model(Unavailable(Reason.MODEL_CONFIG, "none was found when it was recorded"))
    for frame in recording.frames[max(0, until - 1) : until + 1]:
        state.fetches += 1
        if frame.failure:
            state.fail(Failure(frame.failure) if frame.failure in set(Failure) else Failure.INTERNAL)
            continue
        try:
            state.accept(state.read(frame.page_text), frame.at_seconds)
        except FetchError as error:
            state.fail(error.reason)
            print(f"{settings.recording}: at {frame.at_seconds:g} s: {error}", file=sys.stderr)
    return state


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
