"""Basic authentication against bcrypt hashes, whose checks take tens of milliseconds by design."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping

import bcrypt
from pydantic import SecretStr

# Successful checks remembered; failures are not, so that nobody can push the good ones out.
REMEMBERED = 100
# Checks at the same time: guessing must not take all cores.
MAX_CHECKS = 2
# What bcrypt looks at.
MAX_PASSWORD_BYTES = 72


class Users:
    """Who may enter."""

    def __init__(self) -> None:
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._turn = asyncio.Semaphore(MAX_CHECKS)

    async def admit(self, authorization: str, users: Mapping[str, SecretStr]) -> bool:
        """Whether the header names a user with the right password.

        An unknown user costs the time of a wrong password, so that names can't be found by the clock.
        """
        name, password = _credentials(authorization)
        known = users.get(name)
        hashed = known.get_secret_value() if known is not None else _nobody(users)
        digest = hashlib.blake2b(key=self._key)
        for part in (name, hashed, password):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        told = digest.digest()
        if known is not None and told in self._good:
            self._good.move_to_end(told)
            return True
        async with self._turn:
            matches = await asyncio.to_thread(_matches, password, hashed)
        if known is None or not matches:
            return False
        self._good[told] = None
        while len(self._good) > REMEMBERED:
            self._good.popitem(last=False)
        return True


def _credentials(authorization: str) -> tuple[str, str]:
    """User and password; two empty texts where there are none."""
    scheme, _, packed = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(packed.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return "", ""
    return name, password


def _nobody(users: Mapping[str, SecretStr]) -> str:
    """A hash that no password has, as costly to check as the users' own."""
    cost = max((hashed.get_secret_value().split("$")[2] for hashed in users.values()), default="10")
    return f"$2b${cost}${'.' * 53}"


def _matches(password: str, hashed: str) -> bool:
    told = password.encode()[:MAX_PASSWORD_BYTES]
    try:
        # With a NUL in it nothing matches, but the time is spent all the same.
        return bcrypt.checkpw(told.replace(b"\0", b""), hashed.encode()) and b"\0" not in told
    except ValueError:
        return False
