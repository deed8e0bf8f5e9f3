"""What the rules cost: evaluation time in a real Prometheus for 100 and 1,000 engines.

Every engine is a pod with the series of a recorded vLLM under load and of finished requests in five tiers.
Reported: every group's last evaluation over its own interval, summed, and how the two sizes compare.
Look-backs are as full as the run is long, so queries over hours cost more after hours.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import yaml

# Started by its path, so the repository's root is not on the path yet.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from alerts.rules import groups
from exporter.requests.tiers import ITL_BOUNDS, TTFT_BOUNDS
from tests.bench._common import tell
from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "vllm-llama-preemptions.prom"
TIERS = ("4096", "8192", "32768", "131072", "+Inf")
SCRAPE_S = 10
# Every group is evaluated twice at least within a run; more often, and they would get in each other's way.
EVALUATE_S = 30
_COUNTING = re.compile(r"_(total|bucket|count|sum)\{")


def one_engine() -> list[str]:
    """Sample lines of one engine; %POD% stands for its pod."""
    lines = [line for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    for name, bounds in (("itl", ITL_BOUNDS), ("ttft", TTFT_BOUNDS)):
        for tier in TIERS:
            labels = f'target="t",model_name="llama",context="{tier}",source="trace"'
            for n, bound in enumerate((*bounds, float("inf"))):
                le = "+Inf" if bound == float("inf") else f"{bound:g}"
                lines.append(f'kvcache_{name}_seconds_bucket{{{labels},le="{le}"}} {n + 1}')
            lines.append(f"kvcache_{name}_seconds_count{{{labels}}} {len(bounds) + 1}")
            lines.append(f"kvcache_{name}_seconds_sum{{{labels}}} 0.4")
    for tier in TIERS:
        labels = f'target="t",model_name="llama",context="{tier}"'
        lines += [
            f"kvcache_held_token_seconds_total{{{labels}}} 100",
            f"kvcache_context_requests_total{{{labels}}} 10",
            f"kvcache_held_cost_dollars_total{{{labels}}} 0.1",
        ]
    return [line.replace("{", '{pod="%POD%",namespace="llm",', 1) for line in lines if "{" in line]


def page_maker(engines: int) -> Callable[[], bytes]:
    """A page of that many engines whose counters rise with every scrape."""
    template = [(line.rpartition(" "), bool(_COUNTING.search(line))) for line in one_engine()]
    scrapes = 0

    def page() -> bytes:
        nonlocal scrapes
        scrapes += 1
        rows = [
            f"{head} {float(value) * (scrapes if counts else 1):g}" for (head, _, value), counts in template
        ]
        text = "\n".join(rows) + "\n"
        return "".join(text.replace("%POD%", f"pod-{n}") for n in range(engines)).encode()

    return page


@contextmanager
def serving(page: Callable[[], bytes]) -> Iterator[str]:
    """HOST:PORT of a server for the page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def measure(engines: int, seconds: float) -> tuple[dict[str, float], int]:
    """(group -> seconds it takes, series in the database) after so many seconds of scrapes."""
    made = groups()
    for group in made:
        group["interval"] = f"{EVALUATE_S}s"
    with tempfile.TemporaryDirectory() as folder, serving(page_maker(engines)) as address:
        rules, config = Path(folder, "rules.yaml"), Path(folder, "prometheus.yaml")
        rules.write_text(yaml.safe_dump({"groups": made}))
        scrape = {"job_name": "kv", "honor_labels": True, "static_configs": [{"targets": [address]}]}
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
                    "rule_files": [str(rules)],
                    "scrape_configs": [scrape],
                }
            )
        )
        port = free_port()
        command = [
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"),
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with Server(command, {"PATH": "/usr/bin:/bin"}, Path(folder, "log"), port) as prometheus:
            wait_for(lambda: prometheus.answers("/-/ready"), 60, "Prometheus ready")
            end = time.monotonic() + seconds

            def values(name: str) -> dict[str, float]:
                """Last word of the labels -> value."""
                text = httpx.get(f"{prometheus.url}/metrics", timeout=60, trust_env=False).text
                found = re.findall(rf'^{name}(?:\{{.*;(.*)"\}})? (\S+)$', text, re.M)
                return {group: float(number) for group, number in found if number != "NaN"}

            def done() -> bool:
                took = values("prometheus_rule_group_last_duration_seconds")
                return time.monotonic() > end and len(took) == len(made) and min(took.values()) > 0

            wait_for(done, seconds + 120, "evaluations")
            failed = sum(values("prometheus_rule_evaluation_failures_total").values())
            if failed:
                raise RuntimeError(f"{failed:g} evaluations failed")
            series = values("prometheus_tsdb_head_series")[""]
            return values("prometheus_rule_group_last_duration_seconds"), int(series)


def main() -> None:
    """Print a line per size, and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90, help="how long each size is scraped")
    parser.add_argument("--engines", type=int, nargs=2, default=[100, 1000])
    parser.add_argument("--quick", action="store_true", help="a tenth of the engines: to see that it works")
    asked = parser.parse_args()
    if asked.quick:
        asked.engines, asked.seconds = [10, 100], 40.0
    seconds_of = {"s": 1, "m": 60}
    intervals = {g["name"]: int(g["interval"][:-1]) * seconds_of[g["interval"][-1]] for g in groups()}
    shares: list[float] = []
    figures: dict[str, dict[str, float]] = {}
    for engines in asked.engines:
        took, series = measure(engines, asked.seconds)
        shares.append(sum(took[name] / interval for name, interval in intervals.items()))
        figures[str(engines)] = {"series": series, "share": shares[-1], **took}
        print(f"{engines} engines, {series} series: {shares[-1]:.1%} of the intervals")
        for name, seconds in took.items():
            print(f"  {name}: {seconds:.3f} s every {intervals[name]} s")
    print(f"ratio of the two sizes: {shares[1] / shares[0]:.1f}")
    tell("rule_evaluation", {**figures, "ratio": shares[1] / shares[0]})


if __name__ == "__main__":
    main()
