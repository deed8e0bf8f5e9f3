"""How many targets one exporter serves: CPU share, how late polls are, /metrics, memory.

Every target is the recorded vLLM, served by a process of its own (which needs CPU, too: on a
machine with few cores it is part of what limits).  Intervals are as in earnest: 2 s, stretched
where fetches take long.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import httpx

from tests.bench._common import ENGINES, quick, show, tell
from tests.bench.memory import free_port, memory_mib
from tests.bench.poll import served

TARGETS = (1, 50, 200, 500)
PATIENCE_S = 180
UP = re.compile(r"^kvcache_engine_up\{.*\} 1\.0$", re.MULTILINE)
VALUE = r"^kvcache_exporter_{name}\{{.*\}} (\S+)$"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def values(page: str, name: str) -> list[float]:
    """One of our own figures, of every target."""
    return [float(v) for v in re.findall(VALUE.format(name=name), page, re.MULTILINE)]


def measure(url: str, many: int, seconds: float) -> dict[str, float]:
    """One exporter over that many targets, for that long after all of them were read."""
    address = f"127.0.0.1:{free_port()}"
    engine = ENGINES["vllm"]
    with tempfile.TemporaryDirectory() as folder, httpx.Client(timeout=60, trust_env=False) as client:
        settings = Path(folder) / "settings.yaml"
        rows = "".join(f"  - {{name: engine-{n}, url: '{url}'}}\n" for n in range(many))
        settings.write_text(f"model_config: {engine.config_path}\nhub: false\ntarget:\n{rows}")
        command = [sys.executable, "-c", "from exporter.cli import main; raise SystemExit(main())", "serve"]
        command += ["--config-file", str(settings), "--listen-address", address, "--log-level", "error"]
        with subprocess.Popen(command) as exporter:
            try:
                deadline = time.monotonic() + PATIENCE_S
                while True:
                    try:
                        if len(UP.findall(client.get(f"http://{address}/metrics").text)) == many:
                            break
                    except httpx.TransportError:
                        pass
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{many} targets were not all read")
                    time.sleep(0.5)
                time.sleep(seconds / 3)  # intervals settle
                began, cpu = time.monotonic(), cpu_seconds(exporter.pid)
                text = client.get(f"http://{address}/metrics").text
                polls, failed = sum(values(text, "fetches_total")), sum(values(text, "errors_total"))
                scrapes: list[float] = []
                ages: list[float] = []
                page = b""
                while time.monotonic() - began < seconds:
                    started = time.monotonic()
                    page = client.get(f"http://{address}/metrics").content
                    scrapes.append(time.monotonic() - started)
                    ages += values(page.decode(), "readout_age_seconds")
                    time.sleep(seconds / 6)
                wall = time.monotonic() - began
                text = page.decode()
                polls = sum(values(text, "fetches_total")) - polls
                failed = sum(values(text, "errors_total")) - failed
                used = cpu_seconds(exporter.pid) - cpu
                return {
                    "cpu_share": used / wall,
                    "cpu_ms_a_poll": used / polls * 1e3,
                    "failed_share": failed / polls,
                    "interval_s": median(values(text, "poll_interval_seconds")),
                    "age_s": median(ages),
                    "oldest_s": max(ages),
                    "metrics_ms": median(scrapes) * 1e3,
                    "metrics_kb": len(page) / 1e3,
                    "gzip_kb": len(gzip.compress(page, 1)) / 1e3,
                    "rss_mib": memory_mib(exporter.pid)["rss"],
                }
            finally:
                exporter.terminate()


def main() -> None:
    tenth = quick(__doc__)
    targets: Sequence[int] = TARGETS[:2] if tenth else TARGETS
    with served(ENGINES["vllm"]) as url:
        found = {many: measure(url, many, 6 if tenth else 24) for many in targets}
    rows: list[list[object]] = [["targets", *next(iter(found.values()))]]
    rows += [[str(many), *figures.values()] for many, figures in found.items()]
    show(rows)
    fewest, most = found[targets[0]], found[targets[-1]]
    for name in ("cpu_ms_a_poll", "metrics_kb", "rss_mib"):
        print(f"{name}, {targets[-1]} targets over {targets[0]}: {most[name] / fewest[name]:.2f}")
    tell("targets", {str(many): figures for many, figures in found.items()})


if __name__ == "__main__":
    main()
