"""How far each file of a followed log has been read, kept over a restart if a directory is given."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.log import log

_MAX_STATE_BYTES = 64 * 1024


@dataclass(slots=True)
class Position:
    """``offset`` bytes of the file with this inode are read; ``skipping``: inside a line not wanted."""

    inode: int = 0
    offset: int = 0
    skipping: bool = False


class PositionFile:
    """Positions of one log directory, in a file of a state directory."""

    def __init__(self, state_directory: Path, log_directory: Path) -> None:
        name = hashlib.sha256(os.fsencode(log_directory.absolute())).hexdigest()[:16]
        self.path = state_directory / f"request-log-{name}.json"
        self._said = False
        self._kept = ""

    def load(self) -> dict[str, Position] | None:
        """What was remembered; None where there is nothing usable: then reading starts at the end."""
        try:
            with self.path.open("rb") as file:
                said = json.loads(file.read(_MAX_STATE_BYTES))
            return {
                str(name): Position(int(inode), max(0, int(offset)), bool(skipping))
                for name, (inode, offset, skipping) in said.items()
            }
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("request log position not usable", file=str(self.path), reason=type(error).__name__)
            return None

    def save(self, positions: Mapping[str, Position]) -> None:
        """Replace the file in one step; a failure is said once and costs the memory only."""
        said = json.dumps({name: (p.inode, p.offset, p.skipping) for name, p in positions.items()})
        if said == self._kept:
            return
        fresh = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(said)
            fresh.replace(self.path)
            self._kept, self._said = said, False
        except OSError as error:
            if not self._said:
                self._said = True
                log.warning("request log position not kept", file=str(self.path), reason=error.strerror)
