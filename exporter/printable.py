"""Text of others on a terminal: a name may hold line ends and escape sequences."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` on one line, with "?" for whatever does not print."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
