"""Is a host this machine, and which sockets listen on a port of it.

Source: proc(5), /proc/net/tcp and tcp6: addresses are 32-bit words in the
machine's own byte order, state 0A is LISTEN.
"""

from __future__ import annotations

import itertools
import socket
import sys
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

Address = IPv4Address | IPv6Address

_LISTEN = "0A"
_MAX_LINES = 1_000_000
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


def local_addresses(host: str) -> frozenset[Address]:
    """The addresses of ``host`` if every one of them is this machine's, else empty.

    Blocking: a name is resolved.  A name that resolves to several machines (a
    headless service) is not this one even if this one is among them.
    """
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, ValueError):
        return frozenset()
    addresses: set[Address] = set()
    for family, _, _, _, sockaddr in found:
        try:
            address = _plain(ip_address(str(sockaddr[0])))
        except ValueError:
            return frozenset()
        if address.is_unspecified:  # connecting to 0.0.0.0 reaches the loopback
            addresses.update(_LOOPBACK)
        elif address.is_loopback or (not address.is_multicast and _bindable(family, sockaddr)):
            addresses.add(address)
        else:
            return frozenset()
    return frozenset(addresses)


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _bindable(family: int, sockaddr: tuple[object, ...]) -> bool:
    """True if the kernel lets a socket have that address, which it does for its own only."""
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.bind(sockaddr)
    except OSError:
        return False
    return True


def listening_inodes(proc: Path, addresses: frozenset[Address], port: int) -> frozenset[str]:
    """Inodes of the sockets that would take a connection to ``port`` at ``addresses``.

    A socket bound to the address itself wins over one bound to all, as in the
    kernel.  Empty where the tables are absent or not readable.
    """
    exact: set[str] = set()
    wildcard: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            with (proc / "net" / table).open(encoding="ascii", errors="replace") as lines:
                for line in itertools.islice(lines, _MAX_LINES):
                    entry = _listener(line.split())
                    if entry is None or entry[1] != port:
                        continue
                    if entry[0].is_unspecified:
                        wildcard.add(entry[2])
                    elif entry[0] in addresses:
                        exact.add(entry[2])
        except OSError:
            continue
    return frozenset(exact or wildcard)


def unix_inodes(proc: Path, path: str) -> frozenset[str]:
    """Inodes of the sockets that listen at ``path`` (/proc/net/unix, flag 00010000 is listening)."""
    found: set[str] = set()
    try:
        with (proc / "net" / "unix").open(encoding="utf-8", errors="replace") as lines:
            for line in itertools.islice(lines, _MAX_LINES):
                fields = line.rstrip("\n").split(None, 7)
                if len(fields) == 8 and fields[3] == "00010000" and fields[7] == path:
                    found.add(fields[6])
    except OSError:
        return frozenset()
    return frozenset(found)


def _listener(fields: list[str]) -> tuple[Address, int, str] | None:
    """Address, port and inode of one line, None where it is no listener's."""
    if len(fields) < 10 or fields[3] != _LISTEN:
        return None
    address, _, port = fields[1].partition(":")
    try:
        raw = bytes.fromhex(address)
        words = [raw[i : i + 4] for i in range(0, len(raw), 4)]
        if sys.byteorder == "little":
            words = [word[::-1] for word in words]
        return _plain(ip_address(b"".join(words))), int(port, 16), fields[9]
    except ValueError:
        return None
