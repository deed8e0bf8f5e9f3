"""``python recorded_engine.py HOST:PORT``: a recorded vLLM run, replayed, where no engine is at hand."""

from __future__ import annotations

import sys
import time

import uvicorn

from exporter.demo import load
from exporter.recording import engine_app


def main() -> None:
    """Serve until stopped."""
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000").rpartition(":")
    uvicorn.run(engine_app(load("vllm"), time.monotonic), host=host, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
