"""The page itself: a recorded engine, the real exporter, Prometheus, Alertmanager, and who is paged."""

from __future__ import annotations

from pathlib import Path

import httpx

from exporter.recording.replay import write_model
from tests.integration.running import Program
from tests.rig.waiting import wait_for

from .promtool import needs
from .recorded import RECORDING, Tape, recorded_engine
from .stand import PATIENCE_S, Inbox, Prometheus, alertmanager, quick_rules

ALERT = "KVCacheUsageHigh"


def test_usage_alert_goes_from_pending_to_the_page_and_resolves(tmp_path: Path) -> None:
    """All that stands between a full pool and a telephone, with nothing in it replaced but the load."""
    for program in ("prometheus", "prometheus-alertmanager"):
        needs(program)
    engine = Tape()
    with recorded_engine(engine) as url, Inbox() as inbox:
        settings = Program.targets({"vllm-a": url}, tmp_path)
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
