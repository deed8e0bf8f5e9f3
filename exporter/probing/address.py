"""A name resolved once, and a client that connects to what was found and to nothing else."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import httpx

from exporter.fetch import Failure, FetchError
from exporter.probing.allow import Address, Goal


async def addresses_of(goal: Goal) -> list[Address]:
    """The goal's addresses, in the resolver's order.  Raises :class:`FetchError` where there are none."""
    if (literal := goal.literal) is not None:
        return [literal]
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(goal.host, goal.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise FetchError(Failure.DNS, str(error)) from None
    return [ip_address(sockaddr[0]) for *_, sockaddr in found]


def pin(client: httpx.AsyncClient, address: Address) -> None:
    """Make every request of ``client`` go to ``address``; name, port and certificate stay the URL's own.

    Between a check of a name and a connection to it, its owner may let it point elsewhere.
    """

    async def connect_there(request: httpx.Request) -> None:
        request.extensions = {**request.extensions, "sni_hostname": request.url.host}
        request.url = request.url.copy_with(host=str(address))  # the Host header is made already

    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], connect_there]}
