"""Writing a recording: whole lines only, whatever happens to the process."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from exporter.recording.format import Header


class Writer:
    """A recording being written, for the length of a ``with`` block.

    Every line is one gzip member and goes to the file in one write, so at any
    moment the file is a whole recording.  ``size_bytes``: of the file so far.
    """

    def __init__(self, path: Path, header: Header, *, max_bytes: int, force: bool = False) -> None:
        """Create ``path``; with ``force`` an existing file is replaced.

        Raises FileExistsError without, and other OSErrors.
        """
        self.size_bytes = 0
        self._max_bytes = max_bytes
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags | (os.O_TRUNC if force else os.O_EXCL), 0o666)
        if not self._append(header.model_dump(mode="json", exclude_none=True)):
            self.close()
            raise OSError(errno.EFBIG, f"the header alone is larger than {max_bytes} bytes")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing is held back until then."""
        os.close(self._descriptor)

    def page(self, at_seconds: float, text: str) -> bool:
        """Add a page; False where the file would grow beyond its limit, and nothing is added."""
        return self._append({"t": round(at_seconds, 3), "metrics": text})

    def failure(self, at_seconds: float, reason: str) -> bool:
        """Add a poll that gave no page; False as in :meth:`page`."""
        return self._append({"t": round(at_seconds, 3), "failure": reason})

    def _append(self, row: dict[str, Any]) -> bool:
        # No time stamp: the same run gives the same file.
        member = gzip.compress(json.dumps(row, separators=(",", ":")).encode() + b"\n", mtime=0)
        if self.size_bytes + len(member) > self._max_bytes:
            return False
        if os.write(self._descriptor, member) < len(member):
            # Back to the last whole line.
            os.ftruncate(self._descriptor, self.size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size_bytes += len(member)
        return True
