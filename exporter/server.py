"""uvicorn, as a guest in a process that has more to do than serve HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

# Requests still open when we are told to stop get this many seconds.
GRACE_S = 1


class GuestServer(uvicorn.Server):
    """Leaves signals to the host: uvicorn's own handling kills the process by the
    signal once it has shut down, so nothing after it would run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def guest(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> GuestServer:
    """A server for ``app`` without access log, lifespan or websockets."""
    return GuestServer(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            # Who may send traces hangs on the peer's address: FORWARDED_ALLOW_IPS must not change whose
            # X-Forwarded-For is believed.
            forwarded_allow_ips="127.0.0.1",
            timeout_graceful_shutdown=GRACE_S,
        )
    )
