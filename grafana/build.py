"""``python -m grafana.build``: write the boards' JSON anew; ``--check``: only say whether it is current."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import capacity, fleet, health, latency, pressure

HERE: Final = Path(__file__).parent
FOLDER: Final = HERE / "dashboards"
BOARDS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    module.UID: module.made for module in (capacity, pressure, latency, fleet, health)
}


def text_of(uid: str) -> str:
    """A board's JSON, keys sorted, so that a change shows as a change."""
    return json.dumps(BOARDS[uid](), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def files() -> dict[Path, str]:
    """All that is generated: path -> text."""
    return {FOLDER / f"{uid}.json": text_of(uid) for uid in BOARDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 where ``--check`` found a file out of date."""
    parser = argparse.ArgumentParser(prog="python -m grafana.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    made = files()
    old = [path for path, text in made.items() if not path.is_file() or path.read_text("utf-8") != text]
    old += [path for path in FOLDER.glob("*.json") if path not in made]
    for path in old:
        if asked.check:
            print(f"out of date: {path.relative_to(HERE)}", file=sys.stderr)
        elif path in made:
            path.write_text(made[path], encoding="utf-8")
            print(f"written: {path.relative_to(HERE)}")
        else:
            path.unlink()
    return 1 if asked.check and old else 0


if __name__ == "__main__":
    raise SystemExit(main())
