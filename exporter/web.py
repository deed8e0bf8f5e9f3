"""The web surface: /metrics, /explain, health, landing page."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from exporter import __version__, explain, landing
from exporter.collect import registry
from exporter.collect_records import add_receivers
from exporter.log import log
from exporter.requests.otlp import TraceReceiver
from exporter.requests.plugin_receiver import PluginReceiver
from exporter.server import guest, listen
from exporter.settings import host_and_port
from exporter.target import TargetState
from exporter.watch import Watch


def app(watch: Watch, now: Callable[[], float] = time.time) -> Starlette:
    """The application over the watched engines; ``now``: Unix time."""
    metrics = registry(
        lambda: watch.states, watch.clock, lambda out: add_receivers(watch.intake, watch.forwarder, out)
    )

    async def serve_metrics(request: Request) -> Response:
        return _exposition(metrics, request.headers.get("accept", ""))

    async def serve_explain(request: Request) -> Response:
        states = _named(watch.states, request.query_params.get("target"))
        if states is None:
            return PlainTextResponse("no such target\n", status_code=404)
        if request.query_params.get("output") == "json":
            return JSONResponse([explain.as_dict(state) for state in states])
        return PlainTextResponse("\n".join(explain.as_text(state) for state in states))

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("healthy\n")

    async def ready(_: Request) -> Response:
        # Ready to serve, not "the engine is up": a native sidecar starts first,
        # and a pod whose readiness waited for the engine would deadlock.
        return PlainTextResponse("ready\n")

    async def first_page(_: Request) -> Response:
        return HTMLResponse(landing.page(watch.states))

    return Starlette(
        routes=[
            Route("/", first_page),
            Route("/metrics", serve_metrics),
            Route("/explain", serve_explain),
            Route("/-/healthy", healthy),
            Route("/-/ready", ready),
            *TraceReceiver(watch.intake, watch.forwarder, now).routes(),
            *PluginReceiver(watch.intake, now).routes(),
        ]
    )


def _exposition(metrics: CollectorRegistry, accept: str) -> Response:
    encode, content_type = choose_encoder(accept)
    return Response(encode(metrics), headers={"content-type": content_type})


def _named(states: Sequence[TargetState], name: str | None) -> Sequence[TargetState] | None:
    if name is None:
        return states
    found = [state for state in states if state.name == name]
    return found or None


async def serve(watch: Watch, listen_address: str) -> None:
    """Watch and serve until SIGTERM or SIGINT.  Raises OSError where the address is taken."""
    listening = listen(*host_and_port(listen_address))
    log.info(
        "listening",
        version=__version__,
        address=listen_address,
        targets=[state.name for state in watch.states],
    )
    server = guest(app(watch))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    polling = asyncio.create_task(watch.run(), name="watch")
    # A poll loop that dies takes the process with it: better restarted than silently blind.
    polling.add_done_callback(lambda _: stop())
    try:
        await server.serve(sockets=[listening])
    finally:
        polling.cancel()
        await asyncio.wait({polling})
    if not polling.cancelled() and (error := polling.exception()) is not None:
        raise error


def as_json(told: object) -> str:
    """Stable, readable JSON."""
    return json.dumps(told, indent=1, sort_keys=False)
