"""Which targets ``/probe`` may fetch: patterns over the parsed host and port, never over the URL's text.

A pattern is ``HOST:PORT``, ``*.SUFFIX:PORT`` or ``CIDR:PORT`` (IPv6 in brackets); the port may be ``*``.
Host patterns are about names and are decided before anything is resolved; networks are about
addresses, so a name is resolved first and the address found is the one connected to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Where clouds hand out credentials to whoever asks from inside: never, whatever the patterns say.
METADATA = (
    ip_network("169.254.0.0/16"),
    ip_network("fe80::/10"),
    ip_network("fd00:ec2::/32"),  # AWS: instances at ::254, pods at ::23
    ip_network("fd20:ce::254/128"),  # Google
    ip_network("100.100.100.200/32"),  # Alibaba
    ip_network("168.63.129.16/32"),  # Azure
    ip_network("192.0.0.192/32"),  # Oracle
)
# NAT64: an IPv4 address in an IPv6 one.
NAT64 = ip_network("64:ff9b::/96")
# Further forms of that, whose inner address depends on the network's own set-up: no engine is told by these.
TRANSLATED = (
    ip_network("64:ff9b:1::/48"),  # NAT64 of one's own, RFC 8215
    ip_network("::ffff:0:0:0/96"),  # stateless translation, RFC 2765
    ip_network("2002::/16"),  # 6to4
    ip_network("2001::/32"),  # Teredo
)
MAX_URL_CHARS = 1024
HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?")
# What may stand between an engine's address and its /metrics; no "..", no query.
PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


class RefusedTargetError(Exception):
    """A target that is not fetched; the text is for whoever asked."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A target's URL, taken apart.  ``host`` is lower case, without brackets or a final dot."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def literal(self) -> Address | None:
        """The host, where it is an address."""
        try:
            return ip_address(self.host)
        except ValueError:
            return None

    @property
    def url(self) -> str:
        """Put together again from its parts, so that no second parser reads it differently."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def goal(url: str) -> Goal:
    """The parts of ``url``.  Raises ValueError, whose text repeats nothing of it."""
    if len(url) > MAX_URL_CHARS or not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        raise ValueError("not a URL")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise ValueError("not a URL") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("a target's scheme is http or https")
    if "@" in parts.netloc:
        raise ValueError("no user or password in a target")
    if "?" in url or "#" in url:
        raise ValueError("a target has neither query nor fragment")
    host = (parts.hostname or "").removesuffix(".")
    odd = parts.netloc.endswith(":") or parts.netloc.startswith("[") is not (":" in host)
    if odd or port == 0 or not _is_host(host):
        raise ValueError("a target is http://HOST:PORT or https://HOST:PORT")
    path = parts.path.rstrip("/").removesuffix("/metrics")
    if not PATH.fullmatch(path):
        raise ValueError("a target's path has plain segments")
    return Goal(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path)


def _is_host(host: str) -> bool:
    if ":" not in host:
        return HOST.fullmatch(host) is not None
    try:
        return IPv6Address(host).scope_id is None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of the allow-list."""

    host: str  # "" where it is a network; with its star where it is a suffix
    network: Network | None
    port: int | None  # None: any
    text: str = ""

    def names(self, goal: Goal) -> bool:
        """Whether this is a host pattern, and names the goal."""
        if self.network is not None or self.port not in (None, goal.port):
            return False
        if self.host.startswith("*."):
            return goal.literal is None and goal.host.endswith(self.host[1:])
        return goal.host == self.host

    def holds(self, goal: Goal, address: Address) -> bool:
        """Whether this is a network, and ``address`` lies in it."""
        return self.network is not None and self.port in (None, goal.port) and address in self.network


def pattern(text: str) -> Pattern:
    """An entry of the allow-list.  Raises ValueError."""
    where, colon, port = text.strip().lower().rpartition(":")
    if not colon or not (port == "*" or (port.isdecimal() and 0 < int(port[:6]) < 65536)):
        raise ValueError(f"{text!r}: HOST:PORT, *.SUFFIX:PORT or CIDR:PORT; any port is *")
    number = None if port == "*" else int(port)
    bracketed = where.startswith("[") and where.endswith("]")
    if "/" in where or bracketed:
        try:
            return Pattern("", ip_network(where.strip("[]")), number, text)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
    where = where.removesuffix(".")
    if not HOST.fullmatch(where.removeprefix("*.")):
        raise ValueError(f"{text!r}: no host name (a star stands for the first labels only: *.SUFFIX:PORT)")
    return Pattern(where, None, number, text)


class AllowList:
    """The patterns together; without any, nothing may be fetched."""

    def __init__(self, entries: Sequence[str]) -> None:
        self.patterns = [pattern(entry) for entry in entries]

    def may_name(self, goal: Goal) -> bool:
        """Whether the goal's name or an address of it could be allowed, so that resolving is worth it."""
        return any(
            p.names(goal) or (p.network is not None and p.port in (None, goal.port)) for p in self.patterns
        )

    def take(self, goal: Goal, addresses: Sequence[Address]) -> tuple[Address, Pattern]:
        """The first of the goal's addresses that may be connected to, and the pattern that says so.

        Raises :class:`RefusedTargetError`.
        """
        for address in map(plain, addresses):
            never = any(address in net for net in (*METADATA, *TRANSLATED))
            if address.is_unspecified or address.is_multicast or never:
                continue
            # A name that is allowed and points at this host's own ports is a trick, unless it says so.
            own = address.is_loopback and goal.literal is None and goal.host != "localhost"
            for p in self.patterns:
                if p.holds(goal, address) or (p.names(goal) and not own):
                    return address, p
        raise RefusedTargetError("probe_allow takes no address of this target")


def plain(address: Address) -> Address:
    """An IPv4 address that is dressed up as IPv6, undressed."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
