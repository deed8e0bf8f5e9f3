"""The web surface: /metrics, /probe, /sd, /explain, settings, health, landing page."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from exporter import catalogue as c
from exporter import explain, landing
from exporter.collect_records import Adder, add_receivers
from exporter.fleet import Watch
from exporter.probing.prober import Outcome, Prober
from exporter.requests.otlp import TraceReceiver
from exporter.requests.plugin_receiver import PluginReceiver
from exporter.target import TargetState
from exporter.web import discovery
from exporter.web.control import Control
from exporter.web.metrics import MetricsPage
from exporter.web.probe import ProbePage


def app(watch: Watch, now: Callable[[], float] = time.time, control: Control | None = None) -> Starlette:
    """The application over the watched engines; ``now``: Unix time; ``control``: where the settings
    in force come from."""
    control = control or Control(watch)
    prober = Prober(lambda: watch.settings, watch.clock)

    def add_own(out: Adder) -> None:
        add_receivers(watch.intake, watch.forwarder, out)
        control.add(out)
        for outcome in Outcome:
            out.add(c.PROBE_REQUESTS, prober.outcomes[outcome], {"outcome": outcome})

    async def serve_explain(request: Request) -> Response:
        states = _named(watch.states, request.query_params.get("target"))
        if states is None:
            return PlainTextResponse("no such target\n", status_code=404)
        if request.query_params.get("output") == "json":
            return StreamingResponse(_explained_json(states), media_type="application/json")
        return StreamingResponse(_explained_text(states), media_type="text/plain")

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("healthy\n")

    async def ready(_: Request) -> Response:
        # Ready to serve, not "the engine is up": a native sidecar starts first,
        # and a pod whose readiness waited for the engine would deadlock.
        return PlainTextResponse("ready\n")

    async def first_page(_: Request) -> Response:
        return HTMLResponse(landing.page(watch.states))

    async def serve_discovery(request: Request) -> Response:
        return discovery.answer(request, watch.states)

    return Starlette(
        routes=[
            Route("/", first_page),
            Route("/metrics", MetricsPage(lambda: watch.states, watch.clock, add_own).serve),
            Route("/probe", ProbePage(prober, watch.clock).serve),
            Route("/sd", serve_discovery),
            Route("/explain", serve_explain),
            Route("/-/healthy", healthy),
            Route("/-/ready", ready),
            Route("/-/reload", control.serve_reload, methods=["POST", "PUT"]),
            Route("/-/config", control.serve_config),
            *TraceReceiver(watch.intake, watch.forwarder, now).routes(),
            *PluginReceiver(watch.intake, now).routes(),
        ]
    )


def _named(states: Sequence[TargetState], name: str | None) -> Sequence[TargetState] | None:
    if name is None:
        return states
    found = [state for state in states if state.name == name]
    return found or None


# Target by target, so that many of them hold up nobody and are never in memory at once.


async def _explained_text(states: Sequence[TargetState]) -> AsyncIterator[str]:
    for n, state in enumerate(states):
        yield ("\n" if n else "") + explain.as_text(state)
        await asyncio.sleep(0)


async def _explained_json(states: Sequence[TargetState]) -> AsyncIterator[str]:
    for n, state in enumerate(states):
        yield (",\n" if n else "[") + json.dumps(explain.as_dict(state))
        await asyncio.sleep(0)
    yield "]" if states else "[]"
