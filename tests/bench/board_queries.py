"""What the Grafana boards cost: each panel's queries over 24 h of 200 engines in a real Prometheus.

Every engine is the recorded vLLM of tests/grafana with all series that the boards use, its recording rules
included, copied under another pod's name; counters rise, gauges swing. They go in by remote write.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

# Started by its path, so the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from exporter.log import configure
from grafana.source import Source
from tests.bench._common import show, tell
from tests.grafana.boards import panels, queries, selectors
from tests.grafana.recorded import START
from tests.grafana.stand import END, afternoon
from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

STEP_S: Final = 60
SLICE_S: Final = 3600  # sent at a time: the database takes nothing that is over an hour late
POD: Final = "vllm-0"
# Its model's series of all pods together.
ROLLED_UP: Final = 'pod="", model_name="llama", namespace="llm"'
COUNTING: Final = ("_total", "_bucket", "_count", "_sum")
Series = tuple[dict[str, str], float]


def recorded_series(folder: Path) -> list[Series]:
    """(labels, last value) of the series of one recorded engine that the boards use."""
    used = {name for _, expr in queries() for name, _ in selectors(expr)} | {"up"}
    with afternoon(folder) as prometheus:
        source = Source(prometheus.url, START, END, STEP_S, STEP_S)
        return [
            (dict(one.labels), one.points[-1][1])
            for name in sorted(used)
            for one in source.answer(
                {"expr": f'{name}{{pod="{POD}"}} or {name}{{{ROLLED_UP}}}', "instant": True}
            )
        ]


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _labels(labels: Mapping[str, str]) -> bytes:
    return b"".join(
        _field(1, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in sorted(labels.items())
    )


def _times(first_ms: int, many: int) -> Any:
    """Timestamps as protobuf's varints: six bytes each, for the next thousands of years."""
    at = first_ms + np.arange(many, dtype=np.int64) * STEP_S * 1000
    digits = (at[:, None] >> np.arange(0, 42, 7)) & 127
    digits[:, :-1] |= 128
    return digits.astype(np.uint8)


def request(several: Sequence[tuple[bytes, str, float]], begin: int, first: int, many: int) -> bytes:
    """A remote write: ``many`` samples of each series from number ``first`` on; snappy, not compressed."""
    number = np.arange(first, first + many)
    sample = np.empty((many, 18), np.uint8)
    # Field 2 of 16 bytes: field 1, a double; field 2, a varint.
    sample[:, :3], sample[:, 11] = (0x12, 16, 0x09), 0x10
    sample[:, 12:] = _times((begin + first * STEP_S) * 1000, many)
    parts = []
    for labels, name, value in several:
        values = (
            value * number / 100 if name.endswith(COUNTING) else value * (0.9 + 0.1 * np.sin(number / 30))
        )
        sample[:, 3:11] = values.astype("<f8")[:, None].view(np.uint8)
        parts.append(_field(1, labels + sample.tobytes()))
    body = b"".join(parts)
    return _varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body


def fill(url: str, series: Sequence[Series], engines: int, hours: float, begin: int) -> int:
    """Send everything; how many samples."""
    copies = []
    for n in range(engines):
        for labels, value in series:
            if "pod" not in labels and n:
                continue
            own = {**labels, "pod": f"pod-{n}", "instance": f"10.0.0.{n}:9844"} if "pod" in labels else labels
            copies.append((_labels(own), labels["__name__"], value))
    total, many, group = int(hours * 3600 / STEP_S), SLICE_S // STEP_S, 5000
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    with httpx.Client(timeout=120, trust_env=False) as client:
        for first in range(0, total, many):
            for at in range(0, len(copies), group):
                body = request(copies[at : at + group], begin, first, min(many, total - first))
                client.post(f"{url}/api/v1/write", content=body, headers=headers).raise_for_status()
    return total * len(copies)


def measure(source: Source) -> list[tuple[str, str, int, int, float]]:
    """(board, panel, queries, series, ms) of every panel, the slowest first."""
    rows = []
    for uid, panel in panels():
        # A repeated panel asks for one tier at a time.
        asked = replace(source, chosen={"context": "1024"}) if panel.get("repeat") else source
        started = time.perf_counter()
        answers = [asked.answer(target) for target in panel["targets"]]
        took = (time.perf_counter() - started) * 1000
        rows.append((uid, panel["title"], len(answers), sum(map(len, answers)), took))
    return sorted(rows, key=lambda row: -row[-1])


def main() -> None:
    """Print a row per panel, and a total per board."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--quick", action="store_true", help="20 engines, 4 hours: to see that it works")
    asked = parser.parse_args()
    engines, hours = (20, 4.0) if asked.quick else (asked.engines, asked.hours)
    configure("error", "console")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recorded").mkdir()
        series = recorded_series(folder / "recorded")
        port = free_port()
        (folder / "prometheus.yaml").write_text("{}")
        command = [
            *(
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder}/data",
            ),
            *(f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"),
        ]
        with Server(command, os.environ, folder / "log", port) as prometheus:
            wait_for(lambda: prometheus.answers("/-/ready"), 60, "Prometheus ready")
            end = int(time.time()) // STEP_S * STEP_S
            begin = end - int(hours * 3600)
            started = time.perf_counter()
            samples = fill(prometheus.url, series, engines, hours, begin)
            filled = time.perf_counter() - started
            print(
                f"{engines} engines of {len(series)} series, {hours:g} h: {samples} samples in {filled:.0f} s"
            )
            # Grafana asks for about a point per two pixels.
            step = max(STEP_S, round(hours * 3600 / 720 / STEP_S) * STEP_S)
            rows = measure(Source(prometheus.url, begin, end - STEP_S, step, STEP_S))
    show([("board", "panel", "queries", "series", "ms"), *rows])
    boards = {uid: sum(row[-1] for row in rows if row[0] == uid) for uid in sorted({row[0] for row in rows})}
    show([("board", "ms, one query after the other"), *boards.items()])
    tell("board_queries", {"engines": engines, "hours": hours, **boards})


if __name__ == "__main__":
    main()
