"""Logging: state changes only, as console lines or JSON, through structlog."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Literal

import structlog

from exporter.printable import printable


class _Stderr(structlog.PrintLogger):
    """Lines that can't be written (a full disk, a reader that is gone) are lost, and nothing else is."""

    def msg(self, message: str) -> None:
        with suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def configure(level: str, style: Literal["console", "json"]) -> None:
    """Everything to stderr; stdout belongs to command output."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _one_line,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer()
            if style == "json"
            else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        # The stderr of the moment, not of now: under a test or a supervisor it may be replaced and closed.
        logger_factory=lambda *_: _Stderr(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # The web server's access log would be a line per scrape, its warnings one per request that is none.
    for noisy in ("uvicorn", "uvicorn.access", "uvicorn.error", "httpx", "httpcore", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR if noisy.startswith("uvicorn") else logging.WARNING)


def _one_line(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    # Names and details come from engines and files: no forged lines, no escape sequences.
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


log = structlog.get_logger("kvcache-exporter")
