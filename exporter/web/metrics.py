"""Target states -> an exposition, without holding up the polls.

Collecting goes target by target on the event loop, whose turns keep each target's
series consistent; encoding and compressing, most of the work, go to a thread.
Whoever asks while a page is being made gets that page.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from exporter.collect import Families, add_process, add_target
from exporter.collect_records import Adder
from exporter.shared import Shared
from exporter.target import TargetState
from exporter.web.negotiation import exposition_type, takes_gzip
from exporter.web.pieces import InPieces

# Labels repeat from line to line: the quickest level makes a page twenty times smaller.
GZIP_LEVEL = 1
GZIP = zlib.MAX_WBITS | 16


@dataclass(frozen=True, slots=True)
class Form:
    """How a page is to be written."""

    accept: str  # from exposition_type
    gzip: bool

    @classmethod
    def of(cls, request: Request) -> Form:
        return cls(exposition_type(request.headers.get("accept", "")), takes_gzip(request))


class _Collected(Collector):
    """Families that are there already, for an encoder that wants a registry."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _encode(families: Sequence[Family], form: Form) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(form.accept)
    page = encode(_Collected(families))
    return (zlib.compress(page, GZIP_LEVEL, wbits=GZIP) if form.gzip else page), content_type


async def exposition(families: Sequence[Family], form: Form, status: int = 200) -> Response:
    """The answer that holds ``families``."""
    return _answer(form, *await asyncio.to_thread(_encode, families, form), status)


def _answer(form: Form, body: bytes, content_type: str, status: int = 200) -> Response:
    headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
    if form.gzip:
        headers["content-encoding"] = "gzip"
    return InPieces(body, status, headers)


class MetricsPage:
    """``/metrics`` and ``/metrics?target=NAME``; ``clock`` is that of the states' times."""

    def __init__(
        self,
        states: Callable[[], Sequence[TargetState]],
        clock: Callable[[], float],
        extra: Callable[[Adder], None],
    ) -> None:
        self._states = states
        self._clock = clock
        self._extra = extra
        self._process = ProcessCollector(registry=None)
        self._pages: Shared[tuple[bytes, str]] = Shared()
        # Different pages, asked for at the same time, are made one after the other: memory for one.
        self._turn = asyncio.Lock()

    async def serve(self, request: Request) -> Response:
        """All targets, or the one that is named (without the process's own series)."""
        name = request.query_params.get("target")
        if name is not None and all(state.name != name for state in self._states()):
            return PlainTextResponse("no such target\n", status_code=404)
        form = Form.of(request)
        page = self._pages.join((name, form), lambda: self._page(name, form))
        return _answer(form, *await asyncio.shield(page))

    async def _page(self, name: str | None, form: Form) -> tuple[bytes, str]:
        async with self._turn:
            out = Families()
            own: list[Family] = []
            if name is None:
                add_process(out, self._extra)
                own = list(self._process.collect())
            for state in self._states():
                if name in (None, state.name):
                    now = self._clock()
                    state.expire(now)
                    add_target(state, out, now)
                    await asyncio.sleep(0)
            return await asyncio.to_thread(_encode, [*out.ordered(), *own], form)
