"""``/probe?target=URL[&module=NAME][&debug=true]``: one target, fetched now."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporter import explain
from exporter.collect import Families, add_process, add_target
from exporter.probing.prober import Probed, ProbeError, Prober
from exporter.web.metrics import Form, exposition

SCRAPE_TIMEOUT = "x-prometheus-scrape-timeout-seconds"
PARAMETERS = ("target", "module")


class ProbePage:
    """The endpoint."""

    def __init__(self, prober: Prober, clock: Callable[[], float]) -> None:
        self._prober = prober
        self._clock = clock

    async def serve(self, request: Request) -> Response:
        """200 with an exposition wherever the target may be fetched, ``kvcache_engine_up`` 0 where
        nothing came of it; 400, 403, 503 or 504 with a line of text where there is nothing to say of it,
        and with ``debug=true`` the steps before it."""
        query = request.query_params
        debug = query.get("debug") == "true"
        if any(len(query.getlist(name)) > 1 for name in PARAMETERS):
            return PlainTextResponse("one target and one module at a time\n", 400)
        try:
            probed = await self._prober.probe(query.get("target"), query.get("module"), _seconds(request))
        except ProbeError as error:
            steps = "".join(f"{step}\n" for step in error.steps) if debug else ""
            return PlainTextResponse(f"{steps}{error}\n", error.status)
        if debug:
            return PlainTextResponse(_told(probed))
        out = Families()
        add_process(out)
        add_target(probed.state, out, self._clock(), polled=False)
        return await exposition(list(out.ordered()), Form.of(request))


def _seconds(request: Request) -> float | None:
    """What the scraper says it waits; None where it says nothing sensible."""
    try:
        seconds = float(request.headers.get(SCRAPE_TIMEOUT, ""))
    except ValueError:
        return None
    return seconds if 0 < seconds < 3600 else None


def _told(probed: Probed) -> str:
    return "".join([*(f"{step}\n" for step in probed.steps), "\n", explain.as_text(probed.state)])
