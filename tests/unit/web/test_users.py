"""Basic authentication: who enters, what is remembered, and what an unknown name costs."""

from __future__ import annotations

import asyncio
import base64

import bcrypt
import pytest
from pydantic import SecretStr

from exporter.web import users as u

LONG = "x" * 80


def hashed(password: str, cost: int = 4) -> SecretStr:
    return SecretStr(bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(cost)).decode())


def header(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


USERS = {"alice": hashed("pw"), "bob": hashed("a:b"), "eve": hashed(LONG), "nul": hashed("a")}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every bcrypt check: the password and the hash it was held against."""
    made: list[tuple[str, str]] = []
    matches = u._matches

    def counted(password: str, told: str) -> bool:
        made.append((password, told))
        return matches(password, told)

    monkeypatch.setattr(u, "_matches", counted)
    return made


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (header("alice", "pw"), True),
        (header("alice", "pw").replace("Basic", "basic"), True),
        (header("bob", "a:b"), True),
        (header("eve", LONG), True),  # bcrypt looks at 72 bytes, as Go's does
        (header("alice", "PW"), False),
        (header("alice", ""), False),
        (header("mallory", "pw"), False),
        (header("nul", "a\0"), False),
        (header("", ""), False),
        ("", False),
        ("Bearer pw", False),
        ("Basic !!!", False),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), False),
        ("Basic " + base64.b64encode(b"alice").decode(), False),
    ],
)
def test_who_enters(said: str, expected: bool) -> None:
    """The right password of a known user, and nothing else."""
    assert asyncio.run(u.Users().admit(said, USERS)) is expected


def test_unknown_user_costs_one_check_of_the_same_cost(checks: list[tuple[str, str]]) -> None:
    """The clock must not tell which names exist: both answers take one check, at the users' own cost."""
    listed = {"alice": hashed("pw", 5)}

    async def run() -> None:
        users = u.Users()
        assert not await users.admit(header("mallory", "guess"), listed)
        assert not await users.admit(header("alice", "guess"), listed)

    asyncio.run(run())
    assert len(checks) == 2
    assert [told.split("$")[2] for _, told in checks] == ["05", "05"]


def test_success_is_remembered_and_a_new_hash_forgets_it(checks: list[tuple[str, str]]) -> None:
    """A scrape every 15 s must not cost a check each; a changed password counts at once."""

    async def run() -> None:
        users = u.Users()
        assert all([await users.admit(header("alice", "pw"), USERS) for _ in range(5)])
        assert len(checks) == 1
        assert not await users.admit(header("alice", "pw"), {"alice": hashed("new")})
        assert not await users.admit(header("alice", "pw"), {})

    asyncio.run(run())


def test_memory_of_good_checks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are not remembered at all, and good ones up to a number."""
    monkeypatch.setattr(u, "REMEMBERED", 2)

    async def run() -> int:
        users = u.Users()
        for n in range(5):
            listed = {f"u{n}": hashed("pw")}
            assert await users.admit(header(f"u{n}", "pw"), listed)
            assert not await users.admit(header(f"u{n}", "guess"), listed)
        return len(users._good)

    assert asyncio.run(run()) == 2
