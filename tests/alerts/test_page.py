"""The page itself: a recorded engine, the real exporter, Prometheus, Alertmanager, and who is paged."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn
import yaml

from alerts.rules import groups
from exporter.demo import load
from exporter.recording import engine_app
from exporter.recording.replay import write_model
from tests.integration.running import Program
from tests.rig.waiting import wait_for

from .promtool import SCRAPE, needed, needs
from .stand import PATIENCE_S, Inbox, Prometheus, alertmanager, quick_rules

ALERT = "KVCacheUsageHigh"
RECORDING = load("vllm")


@dataclass(slots=True)
class Tape:
    """Where the recording stands; the engine's gauges and counters are those of that frame."""

    at_seconds: float = 0.0
    url: str = field(default="", compare=False)

    def show(self, usage: float) -> None:
        """Go on to the next frame whose usage is that."""
        self.at_seconds = next(t for t, u in recorded_usage() if t > self.at_seconds and u == usage)

    def end(self) -> None:
        """Go on to the last frame, where everything has drained."""
        self.at_seconds = RECORDING.frames[-1].at_seconds


def recorded_usage() -> list[tuple[float, float]]:
    """(seconds, usage) of each frame, read from the engine's own line."""
    name = "vllm:kv_cache_usage_perc{"
    return [
        (frame.at_seconds, float(line.rsplit(" ", 1)[1]))
        for frame in RECORDING.frames
        for line in frame.page_text.splitlines()
        if line.startswith(name)
    ]


@contextmanager
def recorded_engine() -> Iterator[Tape]:
    """The recorded engine on a port of its own, its tape moved by hand: no test waits for 35 s to pass."""
    tape = Tape()
    app = engine_app(RECORDING, lambda: tape.at_seconds)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False))
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    tape.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    try:
        yield tape
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def test_usage_alert_goes_from_pending_to_the_page_and_resolves(tmp_path: Path) -> None:
    """All that stands between a full pool and a telephone, with nothing in it replaced but the load."""
    for program in ("prometheus", "prometheus-alertmanager"):
        needs(program)
    with recorded_engine() as engine, Inbox() as inbox:
        settings = Program.targets({"vllm-a": engine.url}, tmp_path)
        config = ["--model-config", str(write_model(RECORDING, tmp_path / "model"))]
        with (
            alertmanager(inbox, tmp_path) as manager,
            Program(tmp_path / "exporter.log", *settings, *config, unstretched=True) as exporter,
            Prometheus(quick_rules(ALERT), tmp_path, [exporter.listen], manager.url) as prometheus,
        ):
            prometheus.wait_ready()
            prometheus.wait_for(
                lambda: bool(prometheus.query("kvcache_usage_ratio == 0")), "an idle engine seen"
            )
            assert prometheus.state(ALERT) == "inactive"
            engine.show(1.0)
            prometheus.wait_state(ALERT, "pending")
            assert not inbox.messages
            prometheus.wait_state(ALERT, "firing")
            path, fired = inbox.wait(ALERT, "firing")
            assert path == "/page"
            assert fired["labels"] == {
                "alertname": ALERT,
                "severity": "critical",
                "job": "kv",
                "instance": exporter.listen,
                "namespace": "llm",
                "pod": "p-0",
                "target": "vllm-a",
                "model_name": fired["labels"]["model_name"],
                "engine": "0",
            }
            told = fired["annotations"]
            model = fired["labels"]["model_name"]
            assert told["summary"] == f"KV cache nearly full: {model} (rank 0) on vllm-a, pod p-0"
            assert told["description"].startswith("100% of the KV cache pool is in use, threshold 85%.")
            assert told["runbook_url"].endswith("/KVCacheUsageHigh.md")
            engine.end()
            path, resolved = inbox.wait(ALERT, "resolved")
            assert path == "/page"
            assert resolved["fingerprint"] == fired["fingerprint"]
            prometheus.wait_state(ALERT, "inactive")


def test_engine_down_keeps_the_full_pool_quiet(tmp_path: Path) -> None:
    """One fault, one page: the last gauges of a dead engine still read as a full pool.

    Alertmanager says itself who is silenced by whom, so nothing hangs on who comes first.
    """
    needs("prometheus-alertmanager")
    pod = {"namespace": "llm", "pod": "p-0", "model_name": "m"}
    full = {"alertname": "KVCacheUsageHigh", "severity": "critical", "engine": "0", **pod}
    with Inbox() as inbox, alertmanager(inbox, tmp_path) as manager:
        wait_for(lambda: manager.answers("/-/ready"), PATIENCE_S, "Alertmanager ready")

        def send(**labels: str) -> None:
            body = [{"labels": labels}]
            answer = httpx.post(f"{manager.url}/api/v2/alerts", json=body, timeout=20, trust_env=False)
            answer.raise_for_status()

        def states() -> dict[str, str]:
            """Target -> state of the full pool's alert."""
            found = httpx.get(f"{manager.url}/api/v2/alerts", timeout=20, trust_env=False).json()
            return {
                one["labels"]["target"]: one["status"]["state"]
                for one in found
                if one["labels"]["alertname"] == "KVCacheUsageHigh"
            }

        down = {"alertname": "KVCacheEngineDown", "severity": "critical", "namespace": "llm", "pod": "p-0"}
        send(**down, target="a")
        inbox.wait("KVCacheEngineDown", "firing")
        send(**full, target="a")
        send(**full, target="b")
        inbox.wait("KVCacheUsageHigh", "firing")
        wait_for(
            lambda: states() == {"a": "suppressed", "b": "active"}, PATIENCE_S, "target a silenced, b not"
        )
        told = [one["labels"] for _, message in inbox.messages for one in message["alerts"]]
        assert {one["target"] for one in told if one["alertname"] == "KVCacheUsageHigh"} == {"b"}


def test_firing_times_are_what_the_recording_implies(tmp_path: Path) -> None:
    """The recorded run, second by second, without an engine: the alert fires where the recording says so.

    Expected by walking the recorded usage: above the threshold for some seconds on end. The promtool run sees
    the gauge as a scrape every second would, frames held until the next one.
    """
    hold = 4
    frames = recorded_usage()
    seconds = range(int(frames[-1][0]) + 1)
    usage = [next(u for t, u in reversed(frames) if t <= second) for second in seconds]
    expected, above_since = [], None
    for second in seconds:
        above_since = None if usage[second] <= 0.85 else second if above_since is None else above_since
        expected.append(above_since is not None and second - above_since >= hold)
    # Not all or nothing: else any rule would do.
    assert 3 <= sum(expected) <= len(expected) - 3

    rules = needed(groups(), {ALERT})
    for rule in rules[-1]["rules"]:
        rule |= {"for": f"{hold}s"}
        del rule["keep_firing_for"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": rules}, width=1000))
    labels = ",".join(f'{k}="{v}"' for k, v in {**SCRAPE, "target": "a"}.items())
    firing = f'count(ALERTS{{alertname="{ALERT}",alertstate="firing"}})'
    test = {
        "interval": "1s",
        "input_series": [
            {"series": f"kvcache_usage_ratio{{{labels}}}", "values": " ".join(f"{u!r}" for u in usage)}
        ],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{second}s",
                "exp_samples": [{"labels": "{}", "value": 1}] if expected[second] else [],
            }
            for second in seconds
        ],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
