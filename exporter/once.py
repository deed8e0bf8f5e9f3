"""``explain``: one readout of an engine or of saved files, and out."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from exporter import explain
from exporter.collect import EngineCollector
from exporter.engines.info import parse_document, read_documents
from exporter.fetch import Failure, FetchError, client_for
from exporter.kvmath.known import Unavailable
from exporter.lookup import load_model
from exporter.settings import ExplainSettings, ServeSettings, TargetSettings
from exporter.target import TargetState
from exporter.web import as_json

MAX_FILE_BYTES = 64 * 2**20


def explain_once(settings: ExplainSettings) -> int:
    """Print the readout; 1 where there is none."""
    if (settings.target is None) == (settings.metrics is None):
        raise ValueError("give one of --target URL and --metrics FILE")
    state = asyncio.run(_from_engine(settings)) if settings.target else _from_files(settings)
    if settings.output == "json":
        print(as_json(explain.as_dict(state)))
    elif settings.output == "text":
        print(explain.as_text(state), end="")
    else:
        registry = CollectorRegistry()
        registry.register(EngineCollector(lambda: [state], lambda: state.last_success or 0.0))
        sys.stdout.write(generate_latest(registry).decode())
    # A page that is no engine's is explained, too; a page that could not be read is not.
    return 0 if state.up or state.last_attempt_failed is Failure.NO_ENGINE_FAMILIES else 1


async def _from_engine(settings: ExplainSettings) -> TargetState:
    from exporter.watch import Watch  # noqa: PLC0415

    assert settings.target is not None  # noqa: S101
    common = settings.model_dump(
        include=set(type(settings).model_fields) & set(ServeSettings.model_fields) - {"target", "config_file"}
    )
    watch = Watch(ServeSettings(target=[settings.target], **common))
    watcher = watch.watchers[0]
    async with client_for(urlsplit(settings.target.url).hostname or "") as client:
        await watcher.poll(client)
        await watcher.settled()
    return watcher.state


def _from_files(settings: ExplainSettings) -> TargetState:
    assert settings.metrics is not None  # noqa: S101
    overrides = settings.model_dump(include=set(TargetSettings.model_fields) - {"url", "name", "route"})
    target = TargetSettings(url="http://file", name=settings.metrics.name, **overrides)
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


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
