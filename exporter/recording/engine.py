"""A web application that answers as the recorded engine did."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from exporter.recording.format import Recording


def engine_app(recording: Recording, clock: Callable[[], float]) -> Starlette:
    """An application serving ``recording`` from its first frame on, in a loop.

    ``clock`` gives seconds from any fixed origin.  At the end of a round the
    first frame follows the last, so counters go back: to a scraper that is an
    engine that restarted.  Where a page could not be read, the answer is 503.
    Paths the engine's recording lacks answer 404; ``/health`` is one of them,
    since nobody may probe it (SGLang 0.5.23 runs a prefill for it).
    """
    started_at = clock()

    # Coroutines, so that starlette keeps them out of its thread pool: a page inflates in about a millisecond.
    async def metrics(_: Request) -> Response:
        frame = recording.frame_at(clock() - started_at)
        if frame.failure:
            return PlainTextResponse(f"recorded: {frame.failure}\n", status_code=503)
        return Response(frame.page_text, headers={"content-type": recording.content_type})

    async def endpoint(request: Request) -> Response:
        return JSONResponse(recording.endpoints[request.url.path])

    return Starlette(
        routes=[Route("/metrics", metrics), *(Route(path, endpoint) for path in recording.endpoints)]
    )
