"""Bounded reads of files that somebody else names or writes.

A path may come from an engine's page and point anywhere, so every read here
has a byte cap, never waits (a FIFO is refused, not opened for good) and fails
with one clear line that carries the file's name and nothing of its content.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})


class UnreadableError(Exception):
    """A file that could not be read; ``str()`` is one line for people.

    ``missing`` is True where there is simply no such file, which a search over
    several places passes over.
    """

    def __init__(self, path: Path, why: str, *, missing: bool = False) -> None:
        # repr would escape odd characters twice; a name must only stay on its line.
        super().__init__(f"{_one_line(str(path))}: {why}")
        self.missing = missing


class MalformedError(UnreadableError):
    """A file that was read, but is not what it should be."""


def _one_line(text: str) -> str:
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable if len(printable) <= 300 else printable[:297] + "..."


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The whole content of a regular file of at most ``max_bytes`` bytes.

    Raises :class:`UnreadableError` (absent, no permission, a directory, a symlink
    loop, a device) or :class:`MalformedError` (too large).
    """
    content, size_bytes = read_start(path, max_bytes + 1)
    if max(len(content), size_bytes) > max_bytes:
        raise MalformedError(path, f"larger than {max_bytes} bytes")
    return content


def read_start(path: Path, max_bytes: int, *, skip_bytes: int = 0) -> tuple[bytes, int]:
    """Up to ``max_bytes`` bytes after ``skip_bytes``, and the file's size in bytes.

    The size is 0 for files of /proc.  Raises :class:`UnreadableError`.
    """
    try:
        # O_NONBLOCK: opening a FIFO nobody writes to would otherwise hang the caller.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise UnreadableError(path, kind)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(skip_bytes)
                return file.read(max_bytes), status.st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else type(error).__name__
        raise UnreadableError(path, why, missing=error.errno in _ABSENT) from error
    except ValueError as error:  # a null byte or a lone surrogate in the name
        raise UnreadableError(path, "not a usable path") from error


def parse_json_object(path: Path, content: bytes) -> Mapping[str, object]:
    """``content`` as a JSON object.  Raises :class:`MalformedError` naming ``path``."""
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise MalformedError(path, "JSON nested too deeply") from error
    except ValueError as error:  # bad syntax, bad encoding, an integer of thousands of digits
        raise MalformedError(path, "not JSON") from error
    if not isinstance(value, dict):
        raise MalformedError(path, "JSON, but not an object")
    return value


def read_json_object(path: Path, max_bytes: int) -> Mapping[str, object]:
    """A JSON object of at most ``max_bytes`` bytes of text.

    Raises :class:`UnreadableError` or :class:`MalformedError`.
    """
    return parse_json_object(path, read_bounded(path, max_bytes))
