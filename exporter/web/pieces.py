"""A large body, handed over no faster than its reader takes it."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

# The server copies what it is given into the connection's buffer, and pauses us above 64 KiB: a reader
# that reads nothing then holds this much, and not a whole page.
PIECE_BYTES = 32 * 1024


class InPieces(Response):
    """A response whose body is shared with others and never copied as a whole."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for at in range(0, len(view), PIECE_BYTES):
            piece = bytes(view[at : at + PIECE_BYTES])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
