"""``POST /v1/records`` and ``/v1/records/<target>``: what the vLLM plugin sends."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from exporter.requests.intake import Intake, RefusedError, content_encoding, content_type, unpacked
from exporter.requests.plugin_records import CONTENT_TYPE, feed, records_from_plugin


class PluginReceiver:
    """The endpoint; ``now``: Unix time."""

    def __init__(self, intake: Intake, now: Callable[[], float] = time.time) -> None:
        self.intake = intake
        self._now = now

    def routes(self) -> list[Route]:
        return [
            Route("/v1/records", self.receive, methods=["POST"]),
            Route("/v1/records/{target:path}", self.receive, methods=["POST"]),
        ]

    async def receive(self, request: Request) -> Response:
        """One batch of JSON lines; the answer says how many of them counted."""
        intake = self.intake
        intake.bodies += 1
        try:
            sink = intake.sink(request)
            content_type(request, CONTENT_TYPE)
            encoding = content_encoding(request)
            async with intake.body(request) as packed, intake.turn:
                batch = records_from_plugin(await unpacked(packed, encoding), self._now())
                counted = feed(batch, sink)
        except RefusedError as refused:
            intake.refused[refused.reason] += 1
            return JSONResponse({"message": str(refused)}, refused.status)
        return JSONResponse({"counted": counted})
