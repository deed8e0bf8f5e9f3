"""uvicorn, as a guest in a process that has more to do than serve HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

# Requests still open when we are told to stop get this many seconds.
GRACE_S = 1
BACKLOG = 128


class GuestServer(uvicorn.Server):
    """Leaves signals to the host: uvicorn's own handling kills the process by the
    signal once it has shut down, so nothing after it would run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; "" as host is every address, IPv4 and IPv6.  Raises OSError.

    Made before the server: a taken port is then one clear error, and whoever
    connects early waits in the backlog instead of being refused.
    """
    if not host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def guest(app: Starlette) -> GuestServer:
    """A server for ``app``, to be given its sockets; no access log, lifespan or websockets."""
    return GuestServer(
        uvicorn.Config(
            app,
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
