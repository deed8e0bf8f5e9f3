"""``python -m tests.grafana.pictures``: the pictures of grafana/README.md, from the recorded engines."""

from __future__ import annotations

import tempfile
from pathlib import Path

from grafana.build import BOARDS, HERE
from grafana.preview import picture
from grafana.source import Source

from .boards import COMMITTED
from .recorded import START, STEP_S
from .stand import END, afternoon


def main() -> None:
    """Write them all."""
    with tempfile.TemporaryDirectory() as folder, afternoon(Path(folder)) as prometheus:
        source = Source(prometheus.url, START, END, STEP_S, STEP_S)
        for uid in BOARDS:
            (HERE / "pictures" / f"{uid}.png").write_bytes(picture(COMMITTED[uid], source))


if __name__ == "__main__":
    main()
