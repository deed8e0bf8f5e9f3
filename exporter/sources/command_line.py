"""Find the engine's process on this machine and read its own command line.

What the engine's pages leave out (cache dtype behind ``auto``, parallel sizes)
stands in /proc.  Entries vanish while they are read, belong to others, hold any
bytes: whatever cannot be read counts as not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from exporter.sources.files import UnreadableError, read_bounded
from exporter.sources.flags import EngineFlags, parse_flags
from exporter.sources.sockets import listening_inodes, local_addresses, unix_inodes

# All that is kept of an environment: anything else may be a secret.
ENVIRONMENT = frozenset(
    {
        "HF_HOME",
        "HF_HUB_CACHE",
        "HF_HUB_OFFLINE",
        "HUGGINGFACE_HUB_CACHE",
        "SGLANG_PP_LAYER_PARTITION",
        "TRANSFORMERS_CACHE",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_PP_LAYER_PARTITION",
        "VLLM_USE_V1",
    }
)
_MAX_BYTES = 4 * 2**20  # twice Linux's usual limit for arguments and environment together
_MAX_PARENTS = 16


def find_engine(host: str, port: int, *, proc: Path = Path("/proc")) -> EngineFlags | None:
    """The engine that serves ``host:port``, if that is this machine.  Never raises; blocking.

    By the listening socket where its owner's file descriptors may be read, else
    by the ``--port`` of the processes whose command line starts an engine.  None
    also where the port's owner is something else (a proxy), or where several
    engines would fit and differ: a guess is worse than nothing.
    """
    addresses = local_addresses(host)
    if not addresses:
        return None
    owners = _owners(proc, listening_inodes(proc, addresses, port))
    return _first(proc, owners) if owners else _by_port(proc, port)


def find_engine_at(socket: str, *, proc: Path = Path("/proc")) -> EngineFlags | None:
    """The engine that listens on the unix socket at this path.  Never raises; blocking."""
    return _first(proc, _owners(proc, unix_inodes(proc, socket)))


def _first(proc: Path, owners: Iterable[int]) -> EngineFlags | None:
    return next((found for found in (_engine_above(proc, pid) for pid in owners) if found), None)


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isascii() and name.isdigit())
    except OSError:
        return []


def _owners(proc: Path, inodes: frozenset[str]) -> list[int]:
    if not inodes:
        return []
    wanted = frozenset(f"socket:[{inode}]" for inode in inodes)
    return [pid for pid in _pids(proc) if any(link in wanted for link in _descriptors(proc / str(pid)))]


def _descriptors(process: Path) -> Iterator[str]:
    try:
        numbers = os.listdir(process / "fd")
    except OSError:
        return
    for number in numbers:
        link = _link(process / "fd" / number)
        if link is not None:
            yield link


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def _engine_above(proc: Path, pid: int) -> EngineFlags | None:
    """The engine that ``pid`` is or descends from.

    vLLM's API servers and SGLang's workers overwrite their command line with a title
    (``VLLM::APIServer_0``, ``sglang::scheduler``); the process that started them has it.
    """
    for _ in range(_MAX_PARENTS):
        found = _engine(proc, pid)
        if found is not None:
            return found
        parent = _parent(proc, pid)
        if parent is None:
            return None
        pid = parent
    return None


def _by_port(proc: Path, port: int) -> EngineFlags | None:
    ours = _link(proc / "self" / "ns" / "net")
    candidates = []
    for pid in _pids(proc):
        found = _engine(proc, pid)
        if found is None or found.listening_port != port:
            continue
        # On a node that shows all containers' processes, many listen on 8000, each in a network of its own.
        theirs = _link(proc / str(pid) / "ns" / "net")
        if ours is None or theirs is None or ours == theirs:
            candidates.append(found)
    said = [replace(c, environment={}, working_directory=None, pid=0) for c in candidates]
    if not candidates or any(other != said[0] for other in said):
        return None
    # A wrapper (tini, uv run) shows the same words; the engine itself came after it and has the environment.
    return candidates[-1]


def _engine(proc: Path, pid: int) -> EngineFlags | None:
    process = proc / str(pid)
    argv = _strings(process / "cmdline")
    if not argv:
        return None
    found = parse_flags(argv, working_directory=_working_directory(process), pid=pid)
    return replace(found, environment=_environment(process)) if found is not None else None


def _strings(path: Path) -> list[str]:
    """The null-terminated strings of a /proc file; a byte that is not UTF-8 becomes U+FFFD."""
    try:
        content = read_bounded(path, _MAX_BYTES)
    except UnreadableError:
        return []
    return content.removesuffix(b"\0").decode("utf-8", errors="replace").split("\0") if content else []


def _environment(process: Path) -> Mapping[str, str]:
    pairs = (entry.partition("=") for entry in _strings(process / "environ"))
    return {name: value for name, _, value in pairs if name in ENVIRONMENT}


def _working_directory(process: Path) -> Path | None:
    link = _link(process / "cwd")
    # The kernel marks a directory that was removed under the process.
    return Path(link) if link is not None and not link.endswith(" (deleted)") else None


def _parent(proc: Path, pid: int) -> int | None:
    try:
        lines = read_bounded(proc / str(pid) / "status", _MAX_BYTES).decode("utf-8", errors="replace")
        parent = next(int(line[5:]) for line in lines.splitlines() if line.startswith("PPid:"))
    except (UnreadableError, ValueError, StopIteration):
        return None
    return parent if parent > 0 else None
