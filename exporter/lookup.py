"""What stands beside the page: info endpoints, command line, config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from exporter.background import in_thread
from exporter.derive.inputs import Model
from exporter.engines.info import ENDPOINTS, parse_document, read_documents
from exporter.facts import Facts
from exporter.fetch import Failure, FetchError, get_text
from exporter.kvmath.known import Unavailable, known
from exporter.kvmath.model import read_model
from exporter.settings import TargetSettings
from exporter.sources.command_line import find_engine, find_engine_at
from exporter.sources.flags import EngineFlags
from exporter.sources.model_config import find_model_config
from exporter.sources.weights import weights_bytes

# SGLang's /server_info is 37 kB; a fleet of ranks makes it some hundred.
MAX_INFO_BYTES = 4 * 2**20
INFO_TIMEOUT_S = 3.0
# An endpoint that is not there (a release without it, a development endpoint) is no failure.
# What leaving a flag out means, in both engines.
LEFT_OUT = Facts(
    tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1, kv_cache_dtype="auto"
)
EXPECTED = frozenset({Failure.NOT_FOUND, Failure.UNAUTHORIZED, Failure.OTHER_STATUS})


@dataclass(frozen=True, slots=True)
class Learned:
    """What one look at an engine's surroundings gave.

    ``documents``: what its info endpoints answered, by path, JSON or Unavailable.
    """

    engine: Facts
    command_line: Facts | None
    working_directory: Path | None
    hub_cache: Path | None
    complete: bool  # False where an endpoint failed in a way that may pass
    locked: bool = False  # True where an endpoint asked for a key
    documents: Mapping[str, object] = field(default_factory=dict)


async def learn(
    client: httpx.AsyncClient,
    settings: TargetSettings,
    software: str,
    time_for: Callable[[float], float] = lambda most: most,
    address: str = "",
) -> Learned:
    """Ask the info endpoints, and /proc if the engine runs on this machine.

    ``time_for``: seconds that a request may take of the most that it should; ``address``: where the
    engine is, if its name was resolved before and must not be again.
    """
    documents: dict[str, object] = {}
    complete, locked = True, False
    for group in ENDPOINTS.get(software, ()):
        for path in group:
            if not (seconds := time_for(INFO_TIMEOUT_S)):
                complete = False
                break
            try:
                text = await get_text(
                    client, settings.base_url + path, timeout=seconds, max_bytes=MAX_INFO_BYTES
                )
            except FetchError as error:
                complete = complete and error.reason in EXPECTED
                locked = locked or error.reason is Failure.UNAUTHORIZED
                continue
            documents[path] = parse_document(text)
            break
    flags = await in_thread(lambda: _flags(settings, address))
    return Learned(
        engine=read_documents(documents.values(), software),
        command_line=command_line_facts(flags) if flags else None,
        working_directory=flags.working_directory if flags else None,
        hub_cache=_hub_cache(flags) if flags else None,
        complete=complete,
        locked=locked,
        documents=documents,
    )


def _flags(settings: TargetSettings, address: str) -> EngineFlags | None:
    if settings.socket_path is not None:
        return find_engine_at(settings.socket_path)
    parts = urlsplit(settings.url)
    host = address or parts.hostname or ""
    return find_engine(host, parts.port or (443 if parts.scheme == "https" else 80))


def command_line_facts(flags: EngineFlags) -> Facts:
    """Flags as a source of facts; only what was really given."""
    # With attention data parallelism SGLang's flag is not one replica's share.
    shared = flags.software == "sglang" and (flags.data_parallel_size or 1) > 1
    tensor = None if shared else flags.tensor_parallel_size
    said = Facts(
        software=flags.software,
        model=flags.model,
        served_model_name=flags.served_model_name,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=flags.pipeline_parallel_size,
        data_parallel_size=flags.data_parallel_size,
        decode_context_parallel_size=flags.decode_context_parallel_size,
        block_size=flags.block_size,
        max_model_len=flags.max_model_len,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        kv_cache_dtype=flags.kv_cache_dtype,
        dtype=flags.dtype,
        enable_prefix_caching=flags.enable_prefix_caching,
        hybrid_kv_cache_manager=flags.hybrid_kv_cache_manager,
        speculative=flags.speculative,
        speculative_method=flags.speculative_method,
        num_speculative_tokens=flags.num_speculative_tokens,
        options=flags.options if flags.complete else None,
    )
    # A command line that was understood to its end speaks by what it leaves out, too.
    return said.filled_from(LEFT_OUT) if flags.complete and not shared else said


def _hub_cache(flags: EngineFlags) -> Path | None:
    # In the order in which huggingface_hub looks at them.
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if value := flags.environment.get(name):
            return Path(value) / below
    return None


def load_model(
    explicit: Path | None,
    reported: str | None,
    *,
    allow_hub: bool,
    working_directory: Path | None = None,
    hub_cache: Path | None = None,
) -> Model:
    """config.json found, read and understood, or why not.  Blocks; run it in a thread."""
    found = find_model_config(
        explicit, reported, allow_hub=allow_hub, base_directory=working_directory, cache_dir=hub_cache
    )
    if isinstance(found, Unavailable):
        return Model(shape=found)
    shape = read_model(found.config)
    if not known(shape):
        shape = Unavailable(shape.reason, f"{found.location}: {shape.detail}")
    return Model(shape, found.source, found.location, weights_bytes(found.directory))
