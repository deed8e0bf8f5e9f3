"""Memory of ``kvcache-exporter serve`` after 100, 1,000 and 10,000 polls, scraped meanwhile.

The engine's page changes with every poll: counters rise, usage goes round.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import httpx

from tests.bench._common import ENGINES, Engine, quick, show, tell
from tests.bench._page_server import PageServer

SCRAPE_EVERY_POLLS = 50
# The shortest the settings allow; a poll itself takes less.
POLL_INTERVAL_S = 0.0101
# Only for a run that hangs: fifty polls take about a second.
PATIENCE_S = 120
KIB_PER_MIB = 1024
UP = re.compile(r"^kvcache_engine_up\{.*\} 1\.0$", re.MULTILINE)
PART_OF = {"VmRSS": "rss", "RssAnon": "anonymous", "VmHWM": "peak"}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_mib(pid: int) -> dict[str, float]:
    """Resident memory of a process: all of it, what is its own, and the most there ever was."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    said = dict(line.split(":", 1) for line in lines)
    return {short: int(said[name].split()[0]) / KIB_PER_MIB for name, short in PART_OF.items()}


def measure(engine: Engine, polls: Sequence[int]) -> dict[int, dict[str, float]]:
    """Memory in MiB when the exporter has polled ``engine`` that many times."""
    address = f"127.0.0.1:{free_port()}"
    found: dict[int, dict[str, float]] = {}
    with PageServer(engine, moving=True) as server, tempfile.TemporaryFile() as log:
        Thread(target=server.serve_forever, daemon=True).start()
        # A share of 1: ten thousand polls that spare the engine would take hours.
        command = [str(Path(sys.executable).with_name("kvcache-exporter")), "serve", "--fetch-share", "1"]
        command += ["--target", server.url, "--listen-address", address, "--hub=false"]
        command += ["--model-config", str(engine.config_path), "--poll-interval", str(POLL_INTERVAL_S)]
        exporter = subprocess.Popen(command, stderr=log)
        # It listens a moment after its first poll.
        transport = httpx.HTTPTransport(retries=6)
        try:
            with httpx.Client(transport=transport, trust_env=False) as prometheus:
                for many in range(SCRAPE_EVERY_POLLS, polls[-1] + 1, SCRAPE_EVERY_POLLS):
                    # Poll n has been dealt with when page n + 1 is asked for.
                    polled = server.wait_for_page(many + 1, PATIENCE_S)
                    page = prometheus.get(f"http://{address}/metrics").text if polled else ""
                    # An exporter that reads nothing takes no memory either.
                    if not UP.search(page):
                        log.seek(0)
                        raise RuntimeError(f"the engine is not up at poll {many}: {log.read()[-2000:]!r}")
                    if many in polls:
                        found[many] = memory_mib(exporter.pid)
        finally:
            exporter.terminate()
            exporter.wait()
            server.shutdown()
    return found


def main() -> None:
    tenth = quick(__doc__)
    # SGLang's page is four times as long, so it shows what a page's size adds.
    plans = {"vllm": (100, 1_000) if tenth else (100, 1_000, 10_000), "sglang": (100, 1_000)}
    rows: list[list[object]] = [["engine", "polls", "RSS MiB", "growth", "anonymous", "peak", "minutes"]]
    figures: dict[str, object] = {}
    for name, polls in plans.items():
        started = time.monotonic()
        found = measure(ENGINES[name], polls)
        minutes = (time.monotonic() - started) / 60
        for many, mib in found.items():
            growth = mib["rss"] - found[polls[0]]["rss"]
            rows.append([name, many, mib["rss"], growth, mib["anonymous"], mib["peak"]])
            rows[-1].append(minutes if many == polls[-1] else "")
        figures[name] = {str(many): mib for many, mib in found.items()}
        figures[f"{name}_growth_mib"] = found[polls[-1]]["rss"] - found[polls[0]]["rss"]
    print(f"{SCRAPE_EVERY_POLLS} polls between scrapes")
    show(rows)
    tell("memory", figures)


if __name__ == "__main__":
    main()
