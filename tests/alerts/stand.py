"""Prometheus, Alertmanager and whoever is paged, all on 127.0.0.1, with intervals of a second."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from alerts.rules import HERE, groups, thresholds
from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

from .promtool import needs

PATIENCE_S = 60.0


def quick_rules(alert: str, hold: str = "2s") -> list[Any]:
    """All rule groups, evaluated every second; ``alert`` waits ``hold`` instead of minutes."""
    numbers = copy.deepcopy(thresholds())
    numbers["evaluation"] = {"interval": "1s", "latency_interval": "1s", "slow_interval": "1s"}
    made = groups(numbers)
    for group in made:
        for rule in group["rules"]:
            if rule.get("alert") == alert:
                rule |= {"for": hold, "keep_firing_for": "1s"}
    return made


class Inbox(AbstractContextManager["Inbox"]):
    """A webhook receiver: what Alertmanager sends, in order, with the path it was sent to."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.messages.append((self.path, json.loads(sent)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silence: pytest shows what matters."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def wait(self, alert: str, status: str) -> tuple[str, dict[str, Any]]:
        """(path, alert) of the first such alert of that status; raises TimeoutError."""

        def look() -> tuple[str, dict[str, Any]] | None:
            for path, message in list(self.messages):
                for one in message["alerts"]:
                    if one["labels"]["alertname"] == alert and one["status"] == status:
                        return path, one
            return None

        return wait_for(look, PATIENCE_S, f"{alert} {status} at the webhook")


def alertmanager(inbox: Inbox, folder: Path) -> Server:
    """Alertmanager with the example's own routes and inhibitions; only waits and addresses are others."""
    config = yaml.safe_load((HERE / "alertmanager.example.yaml").read_text())

    def hurry(route: dict[str, Any]) -> None:
        route |= {"group_wait": "0s", "group_interval": "1s"}
        for below in route.get("routes", ()):
            hurry(below)

    hurry(config["route"])
    for receiver in config["receivers"]:
        for hook in receiver["webhook_configs"]:
            hook["url"] = hook["url"].replace("http://127.0.0.1:9099", inbox.url)
    file = folder / "alertmanager.yaml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        needs("prometheus-alertmanager"),
        f"--config.file={file}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    return Server(command, os.environ, folder / "alertmanager.log", port)


class Prometheus(Server):
    """A Prometheus that scrapes every second, or every ``interval``, and sends alerts on."""

    def __init__(
        self,
        rules: Sequence[Any],
        folder: Path,
        targets: Sequence[str] = (),
        alertmanager_url: str = "",
        interval: str = "1s",
    ) -> None:
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules)}, width=1000))
        config: dict[str, Any] = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [
                {
                    "job_name": "kv",
                    "static_configs": [
                        {"targets": list(targets), "labels": {"namespace": "llm", "pod": "p-0"}}
                    ],
                }
            ],
        }
        if alertmanager_url:
            told = [{"targets": [alertmanager_url.removeprefix("http://")]}]
            config["alerting"] = {"alertmanagers": [{"static_configs": told}]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        port = free_port()
        command = [
            needs("prometheus"),
            f"--config.file={folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        super().__init__(command, os.environ, folder / "prometheus.log", port)

    def wait_ready(self) -> None:
        """Return when it is; raises TimeoutError."""
        wait_for(lambda: self.answers("/-/ready"), PATIENCE_S, "Prometheus ready")

    def get(self, path: str, **query: str) -> Any:
        """``data`` of an answer of its API."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=query, timeout=20, trust_env=False)
        return answer.raise_for_status().json()["data"]

    def query(self, expr: str) -> list[Any]:
        """Result of an instant query."""
        result: list[Any] = self.get("query", query=expr)["result"]
        return result

    def state(self, alert: str) -> str:
        """The state of an alert that has one instance at most; "inactive" without."""
        found = [a["state"] for a in self.get("alerts")["alerts"] if a["labels"]["alertname"] == alert]
        assert len(found) <= 1, found
        return str(found[0]) if found else "inactive"

    def wait_state(self, alert: str, state: str) -> None:
        """Return when the alert is in that state; raises TimeoutError."""
        self.wait_for(lambda: self.state(alert) == state, f"{alert} {state}")

    def wait_query(self, expr: str, what: str) -> None:
        """Return when the query has a result; raises TimeoutError."""
        self.wait_for(lambda: bool(self.query(expr)), what)

    def wait_for(self, look: Callable[[], bool], what: str) -> None:
        """Return when ``look`` holds; raises TimeoutError, or RuntimeError if Prometheus has ended."""

        def one() -> bool:
            self.raise_if_dead()
            return look()

        wait_for(one, PATIENCE_S, what)
