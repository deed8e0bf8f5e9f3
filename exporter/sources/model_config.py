"""Where a model's ``config.json`` comes from: a path, the local hub cache, the hub.

Blocking: the caller runs it in a thread.  The hub, its token, its endpoint and
its offline mode are huggingface_hub's own affair; no message here repeats that
library's texts, because an endpoint may carry a password.
"""

from __future__ import annotations

import errno
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants as hub_constants
from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from exporter.kvmath.known import Reason, Unavailable
from exporter.sources.files import MalformedError, UnreadableError, read_json_object

CONFIG_NAME = "config.json"
MAX_CONFIG_BYTES = 8 * 2**20

# A snapshot inside some hub cache, perhaps one that only the engine's container sees.
_SNAPSHOT = re.compile(r"(?:^|/)models--([^/]+)/snapshots/([0-9a-f]{40})/?$")
# The hub library wants to write; these say that it may not, which a read-only mount is meant to say.
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC})


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A ``config.json`` and where it was found.

    ``source`` is ``path``, ``hf_cache`` or ``hub``; ``location`` a path or repo id
    for people; ``directory`` where the checkpoint's other files may lie, None
    where nothing of it stays on this machine.
    """

    config: Mapping[str, object]
    source: str
    location: str
    directory: Path | None


def find_model_config(
    explicit: Path | None,
    reported: str | None,
    *,
    allow_hub: bool = True,
    base_directory: Path | None = None,
    cache_dir: Path | None = None,
) -> FoundConfig | Unavailable:
    """The model's config from the first place that has it.  Never raises.

    ``explicit`` is the user's path to a config file or to a directory with a
    ``config.json``; if given, nothing else is tried.  ``reported`` is the engine's
    name for its model: a local path (relative ones under ``base_directory``, the
    engine's working directory, then under the current one) or a hub id
    ``owner/name``, looked up in ``cache_dir`` (the engine's hub cache), in this
    process's own hub cache and, if allowed, on the hub.

    Unavailable: MODEL_CONFIG (not found, not readable), BAD_MODEL_CONFIG (found,
    but not a JSON object of at most 8 MiB).
    """
    if explicit is not None:
        return _explicit(explicit)
    if not reported or not reported.strip():
        return _missing("the engine names no model path or id")
    found, notes = _local(reported, base_directory)
    if found is not None:
        return found
    repo_id, revision = _hub_name(reported)
    try:
        for cache in (cache_dir, None):
            cached = _cached(repo_id, revision, cache)
            if cached is not None:
                return cached
    except HFValidationError:  # not shaped like a repo id, so it was meant as a path
        return _missing("; ".join(notes))
    nowhere = f"{repo_id}: no {CONFIG_NAME} under that path here, none in the local hub cache"
    if not allow_hub:
        return _missing(f"{nowhere}, and the hub is not to be asked")
    if "/" not in repo_id:
        # A name without an owner is as often somebody's served alias: it stays in the house.
        return _missing(f"{nowhere}, and the hub is asked only for owner/name")
    return _from_hub(repo_id, revision)


def _missing(detail: str) -> Unavailable:
    return Unavailable(Reason.MODEL_CONFIG, detail)


def _short(text: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text[:200])
    return shown if len(text) <= 200 else shown + "..."


def _unavailable(error: UnreadableError) -> Unavailable:
    malformed = isinstance(error, MalformedError)
    return Unavailable(Reason.BAD_MODEL_CONFIG if malformed else Reason.MODEL_CONFIG, str(error))


def _read(file: Path, source: str, location: str, directory: Path | None) -> FoundConfig:
    return FoundConfig(read_json_object(file, MAX_CONFIG_BYTES), source, location, directory)


def _explicit(path: Path) -> FoundConfig | Unavailable:
    try:
        path = path.expanduser()
        file = path / CONFIG_NAME if path.is_dir() else path
        return _read(file, "path", str(file), file.parent)
    except UnreadableError as error:
        return _unavailable(error)
    except (OSError, ValueError, RuntimeError) as error:  # is_dir without rights, a null byte, ~nobody
        return _missing(f"{_short(str(path))}: {type(error).__name__}")


def _local(reported: str, base: Path | None) -> tuple[FoundConfig | Unavailable | None, list[str]]:
    """The config under a local path; else None and what was in the way."""
    path = Path(reported)
    absolute = path.is_absolute()
    places = [path] if absolute else [base / path] if base is not None else []
    if not absolute:
        places.append(path)
    notes: list[str] = []
    for place in places:
        # The name comes from outside: no file of another name is ever read for it.
        file = place if place.name == CONFIG_NAME else place / CONFIG_NAME
        try:
            return _read(file, "path", str(file), file.parent), []
        except MalformedError as error:
            return _unavailable(error), []
        except UnreadableError as error:
            notes.append(str(error))
    return None, notes


def _hub_name(reported: str) -> tuple[str, str | None]:
    """Repo id, if it is one, and revision that ``reported`` stands for.

    vLLM 0.32.0 in offline mode replaces the id by the snapshot's path (engine/arg_utils.py);
    the same snapshot may well lie in our own cache under another root.
    """
    snapshot = _SNAPSHOT.search(reported)
    return (snapshot[1].replace("--", "/"), snapshot[2]) if snapshot else (reported, None)


def _cached(repo_id: str, revision: str | None, cache: Path | None) -> FoundConfig | Unavailable | None:
    """The cached config, None where there is none.  Raises HFValidationError for no repo id."""
    try:
        file = try_to_load_from_cache(repo_id, CONFIG_NAME, cache_dir=cache, revision=revision)
    except HFValidationError:
        raise
    except (OSError, ValueError):  # no rights in the cache, refs/main not text
        return None
    if not isinstance(file, str):
        return None
    try:
        return _read(Path(file), "hf_cache", repo_id, Path(file).parent)
    except UnreadableError as error:
        return None if error.missing else _unavailable(error)


def _from_hub(repo_id: str, revision: str | None) -> FoundConfig | Unavailable:
    if hub_constants.HF_HUB_DISABLE_PROGRESS_BARS is None:  # the user's own setting wins, and would warn
        disable_progress_bars()
    try:
        try:
            file = Path(hf_hub_download(repo_id, CONFIG_NAME, revision=revision))
            return _read(file, "hub", repo_id, file.parent)
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
        # A read-only root filesystem: fetch it into a directory that goes away again.
        with tempfile.TemporaryDirectory(prefix="kvcache-exporter-") as scratch:
            file = Path(hf_hub_download(repo_id, CONFIG_NAME, revision=revision, cache_dir=scratch))
            return _read(file, "hub", repo_id, None)
    except UnreadableError as error:
        return Unavailable(_unavailable(error).reason, f"{repo_id} from the hub: {error}")
    except Exception as error:  # whatever the hub library and its transport raise: the poll goes on
        return _missing(f"{repo_id}: {_why(error)}")


def _why(error: Exception) -> str:
    """Our own words for a failure of the hub; the library's may carry addresses and request ids."""
    match error:
        case GatedRepoError():  # before its parent, RepositoryNotFoundError
            return "gated on the hub; accept its terms and set HF_TOKEN, or give a path"
        case RepositoryNotFoundError():
            return "not on the hub, or private without a token that may read it"
        case RevisionNotFoundError():
            return "the hub has no such revision"
        case OfflineModeIsEnabled() | LocalEntryNotFoundError():  # also an EntryNotFoundError
            if hub_constants.HF_HUB_OFFLINE:
                return "not in the local hub cache, and HF_HUB_OFFLINE is set"
            return "not in the local hub cache, and the hub could not be reached"
        case EntryNotFoundError():
            return f"on the hub, but without a {CONFIG_NAME}"
        case _:
            return f"the hub gave no {CONFIG_NAME} ({type(error).__name__})"
