"""``/sd``: the configured targets for Prometheus's ``http_sd_configs``.

Each becomes a target of its own at our own address, with ``/metrics?target=NAME``: its own ``up``, its
own page, to be sharded like any other.  ``instance`` is the engine's address, as on the engine's own series.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from exporter.target import TargetState


def answer(request: Request, states: Sequence[TargetState]) -> Response:
    """Always 200, and an empty list where nothing is configured: anything else keeps an old list alive."""
    groups = [
        {
            # As the client reached us: what works for it now works for its scrapes.
            "targets": [request.url.netloc],
            "labels": {
                "__scheme__": request.url.scheme,
                "__metrics_path__": "/metrics",
                "__param_target": state.name,
                "__meta_kvcache_target": state.name,
                "__meta_kvcache_url": state.settings.url,
                "__meta_kvcache_route": state.settings.route,
                "instance": urlsplit(state.settings.url).netloc or state.name,  # a unix socket has none
            },
        }
        for state in states
    ]
    return Response(json.dumps(groups), media_type="application/json")
