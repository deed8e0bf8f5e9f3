"""What /probe may fetch.  The URLs that attackers write are the point of most cases."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.probing.allow import METADATA, AllowList, Goal, RefusedTargetError, goal, pattern


def allowed(entry: str, url: str, *addresses: str) -> bool:
    """Whether the one entry lets the target pass, its name having these addresses."""
    aim = goal(url)
    patterns = AllowList([entry])
    found = [aim.literal] if aim.literal else [ip_address(a) for a in addresses]
    if not patterns.may_name(aim):
        return False
    try:
        patterns.take(aim, found)
    except RefusedTargetError:
        return False
    return True


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://engine:8000/metrics", Goal("http", "engine", 8000, "")),
        ("engine:8000", Goal("http", "engine", 8000, "")),  # as __address__ is written
        ("https://Engine.Example.", Goal("https", "engine.example", 443, "")),
        ("http://[FD00::1]:8000/a-b/metrics", Goal("http", "fd00::1", 8000, "/a-b")),
        ("http://10.0.0.5/", Goal("http", "10.0.0.5", 80, "")),
    ],
)
def test_good_targets(url: str, parts: Goal) -> None:
    """Taken apart, and put together so that every other parser reads the same."""
    assert goal(url) == parts
    assert goal(goal(url).url) == parts


@pytest.mark.parametrize(
    "url",
    [
        "", "http://", "http://:8000", "file:///etc/passwd", "gopher://a:1", "ftp://a", "unix:/run/x",
        "http://user@a:1", "http://user:hunter2@a:1", "http://@a:1", "http://a:1#@b", "http://a:1?x=/metrics",
        "http://a:1/../b", "http://a:1/%2e%2e", "http://a:1//b", "http://a\\@b:1", "http://a:1\\b",
        "http://a b:1", "http://a\tb:1", "http://a\nHost: b:1", "http://a:0", "http://a:65536", "http://a:x",
        "http://[::1", "http://[fe80::1%25eth0]:1", "http://[v1.x]:1", "http://ä:1", "http://a,b:1",
        "http://-a:1", "http://a" + "a" * 2000,
    ],
)  # fmt: skip
def test_bad_targets(url: str) -> None:
    """Malformed, or of a kind that is never fetched; the error repeats nothing of it."""
    with pytest.raises(ValueError, match=r"target|URL") as told:
        goal(url)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    ("entry", "url", "addresses", "verdict"),
    [
        # Exact names, and their ports.
        ("engine:8000", "http://engine:8000", ["10.0.0.5"], True),
        ("engine:8000", "http://ENGINE.:8000", ["10.0.0.5"], True),
        ("engine:8000", "http://engine:8001", ["10.0.0.5"], False),
        ("engine:*", "http://engine:8001", ["10.0.0.5"], True),
        ("engine:8000", "http://other:8000", ["10.0.0.5"], False),
        ("engine:80", "http://engine", ["10.0.0.5"], True),
        # Suffixes: labels before it, never a part of one, never the suffix alone.
        ("*.svc.local:8000", "http://a.b.svc.local:8000", ["10.0.0.5"], True),
        ("*.svc.local:8000", "http://svc.local:8000", ["10.0.0.5"], False),
        ("*.svc.local:8000", "http://evilsvc.local:8000", ["10.0.0.5"], False),
        ("*.svc.local:8000", "http://a.svc.local.evil:8000", ["10.0.0.5"], False),
        ("*.0.5:8000", "http://10.0.0.5:8000", [], False),
        # Networks hold addresses, and names through what they resolve to.
        ("10.0.0.0/8:8000", "http://10.1.2.3:8000", [], True),
        ("10.0.0.0/8:8000", "http://10.1.2.3:9000", [], False),
        ("10.0.0.0/8:8000", "http://11.1.2.3:8000", [], False),
        ("10.0.0.0/8:8000", "http://anything:8000", ["10.9.9.9"], True),
        ("10.0.0.0/8:8000", "http://anything:8000", ["11.9.9.9"], False),
        ("10.0.0.0/8:8000", "http://anything:8000", ["11.9.9.9", "10.9.9.9"], True),
        ("10.0.0.0/8:8000", "http://[::ffff:10.1.2.3]:8000", [], True),
        ("[fd00::/8]:8000", "http://[fd12::1]:8000", [], True),
        ("[::1]:8000", "http://[::1]:8000", [], True),
        # Addresses that hand out credentials, however they are spelt and whatever is allowed.
        ("0.0.0.0/0:*", "http://169.254.169.254", [], False),
        ("0.0.0.0/0:*", "http://anything", ["169.254.169.254"], False),
        ("169.254.169.254:80", "http://169.254.169.254", [], False),
        ("engine:*", "http://engine", ["169.254.169.254"], False),
        ("engine:*", "http://engine", ["fe80::1"], False),
        ("[::/0]:*", "http://[::ffff:a9fe:a9fe]", [], False),
        ("[::/0]:*", "http://[64:ff9b::a9fe:a9fe]", [], False),
        ("[::/0]:*", "http://[fd00:ec2::254]", [], False),
        ("[::/0]:*", "http://[fd00:ec2::23]", [], False),
        # 169.254.169.254 in the forms of RFC 8215, SIIT, 6to4 and Teredo.
        ("[::/0]:*", "http://[64:ff9b:1::a9fe:a9fe]", [], False),
        ("[::/0]:*", "http://[::ffff:0:a9fe:a9fe]", [], False),
        ("[::/0]:*", "http://[2002:a9fe:a9fe::1]", [], False),
        ("[::/0]:*", "http://[2001::5601:5601]", [], False),
        ("0.0.0.0/0:*", "http://168.63.129.16", [], False),
        # 0.0.0.0 connects to this host.
        ("0.0.0.0/0:*", "http://0.0.0.0:8000", [], False),
        ("engine:*", "http://engine", ["0.0.0.0"], False),
        # A name that turns into this host (DNS rebinding), unless it is this host's name.
        ("*.evil.example:*", "http://a.evil.example:9000", ["127.0.0.1"], False),
        ("*.evil.example:*", "http://a.evil.example:9000", ["::1"], False),
        ("localhost:8000", "http://localhost:8000", ["127.0.0.1"], True),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", [], True),
        ("127.0.0.0/8:8000", "http://anything:8000", ["127.0.0.1"], True),
        # Other spellings of an address are names until they are resolved.
        ("127.0.0.1:80", "http://2130706433", ["127.0.0.1"], False),
        ("127.0.0.1:80", "http://127.1", ["127.0.0.1"], False),
    ],
)  # fmt: skip
def test_verdicts(entry: str, url: str, addresses: list[str], verdict: bool) -> None:
    """Decided on host, port and the address found."""
    assert allowed(entry, url, *addresses) is verdict


@pytest.mark.parametrize(
    "entry",
    ["", "engine", "*:8000", "*", "a.*.b:1", "**.b:1", "http://a:1", "10.0.0.0/33:1", "10.0.0.1/8:1", "a:0",
     "a:65536", "a:", "[::1:1", "a b:1", ".*:1"],
)  # fmt: skip
def test_bad_patterns(entry: str) -> None:
    """A pattern that would allow something else than it looks like is an error at the start."""
    with pytest.raises(ValueError, match=r".+"):
        pattern(entry)


def test_nothing_is_allowed_by_default() -> None:
    """Without patterns every target is refused."""
    assert not AllowList([]).may_name(goal("http://127.0.0.1:8000"))


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_no_pattern_lets_metadata_through(number: int, mapped: bool) -> None:
    """All of IPv4 and IPv6 allowed, any address asked for: none of those is ever taken."""
    everything = AllowList(["0.0.0.0/0:*", "[::/0]:*", "a:*"])
    address = ip_address(int(ip_address("::ffff:0:0")) + number) if mapped else ip_address(number)
    try:
        taken, _ = everything.take(goal("http://a"), [address])
    except RefusedTargetError:
        return
    assert not any(taken in network for network in METADATA)
