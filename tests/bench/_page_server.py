"""A recorded engine's HTTP side, as cheap as can be: what is timed against it is the exporter.

Started as a program it names its URL on stdout and ends with its stdin:
``python tests/bench/_page_server.py vllm``.
"""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from urllib.parse import urlsplit

from tests.bench._common import ENGINES, Engine

# Sample lines whose value moves from page to page, as on a working engine: counters
# rise by one a page, vLLM's usage goes round through its 299 usable blocks.
MOVING = re.compile(
    r"^((?:vllm:(?:kv_cache_usage_perc|(?:prompt_tokens|generation_tokens|num_preemptions)_total)"
    r"|sglang:(?:prompt_tokens|generation_tokens|num_requests)_total)\{.*\} )(\S+)$",
    re.MULTILINE,
)
USABLE_BLOCKS = 299


class PageServer(ThreadingHTTPServer):
    """Serves ``engine`` on a free port of 127.0.0.1 and counts its pages.

    ``moving``: the values change with each page, else it is the same page again and again.
    """

    daemon_threads = True
    request_queue_size = 1024  # hundreds of watchers begin at the same time

    def __init__(self, engine: Engine, *, moving: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.pages = 0
        self._served = Condition()
        self._documents = {path: json.dumps(body).encode() for path, body in engine.documents.items()}
        # Text, line head, value, text, line head, value, ..., text.
        self._parts = MOVING.split(engine.page) if moving else [engine.page]
        self._still = engine.page.encode()

    def answer(self, path: str) -> bytes | None:
        """The body under ``path``; ``None`` where the engine has no such endpoint."""
        if path != "/metrics":
            return self._documents.get(path)
        with self._served:
            self.pages += 1
            self._served.notify_all()
            number = self.pages
        return self._page(number) if len(self._parts) > 1 else self._still

    def wait_for_page(self, number: int, seconds: float) -> bool:
        """Block until that page was asked for; ``False`` if it was not in time."""
        with self._served:
            return self._served.wait_for(lambda: self.pages >= number, seconds)

    def handle_error(self, request: object, client_address: object) -> None:
        """Quiet where the exporter was stopped in the middle of a page."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def _page(self, number: int) -> bytes:
        parts = list(self._parts)
        for at in range(2, len(parts), 3):
            if "usage_perc" in parts[at - 1]:
                parts[at] = repr(number % (USABLE_BLOCKS + 1) / USABLE_BLOCKS)
            else:
                parts[at] = repr(float(parts[at]) + number)
        return "".join(parts).encode()


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"  # keeps the connection, as the engines' servers do
    # Or the body would wait until the head is acknowledged, up to 40 ms.
    disable_nagle_algorithm = True
    wbufsize = -1  # the head's lines in one piece

    def do_GET(self) -> None:
        body = self.server.answer(urlsplit(self.path).path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a line per page would be most of the work."""


def main() -> None:
    with PageServer(ENGINES[sys.argv[1]], moving=False) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        print(server.url, flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
