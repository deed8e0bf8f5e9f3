"""``python3 pager.py HOST:PORT``: stands for whoever is paged; prints an alert a line."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Pager(BaseHTTPRequestHandler):
    """Alertmanager's webhook: the path is the receiver."""

    def do_POST(self) -> None:
        """Print each alert and say yes."""
        sent = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        for alert in sent["alerts"]:
            name, summary = alert["labels"]["alertname"], alert["annotations"].get("summary", "")
            print(self.path, alert["status"], name, "-", summary, flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """What was printed is enough."""


def main() -> None:
    """Serve until stopped."""
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9099").rpartition(":")
    ThreadingHTTPServer((host, int(port)), Pager).serve_forever()


if __name__ == "__main__":
    main()
