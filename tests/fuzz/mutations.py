"""Damage as it happens on wires, on disks and by malice; and how long to look for more of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import strategies as st

# Some seconds a test in CI; `make fuzz EXAMPLES=20000` looks for longer.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))

# What a value, a label or a field may be instead.
ODD_TEXT = st.sampled_from(
    [
        *("", " ", "NaN", "nan", "+Inf", "-Inf", "-0", "-1", "0", "1", "1e400", "1e308", "9" * 400, "1_000"),
        *(
            "0x10",
            "1e-320",
            "18446744073709551616",
            "None",
            "True",
            "null",
            '"',
            '\\"',
            "\\",
            "\\n",
            "{",
            "}",
        ),
        *("\n", "\r\n", "\0", "\x1b[31m", "\u2028", "\ufeff", "\ud7ff", "💥", "../../etc/passwd", "<script>"),
        *('"} 1\nkvcache_engine_up 0\n', "x" * 600, "x" * 20_000, "% s %s %n", "{{.}}", "$(reboot)"),
    ]
) | st.text(max_size=12)


def bytes_changed(content: bytes) -> st.SearchStrategy[bytes]:
    """``content`` with up to four places flipped, cut out, doubled or overwritten, perhaps cut short."""
    place = st.integers(0, max(0, len(content) - 1))
    kind = st.sampled_from(["flip", "cut", "double", "write", "end"])
    change = st.tuples(kind, place, st.integers(1, 200), st.binary(max_size=8))
    return st.lists(change, min_size=1, max_size=4).map(lambda changes: _changed(content, changes))


def _changed(content: bytes, changes: Sequence[tuple[str, int, int, bytes]]) -> bytes:
    for kind, at, length, new in changes:
        if kind == "flip":
            content = content[:at] + bytes(b ^ 0xFF for b in content[at : at + 1]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at] + content[at + length :]
        elif kind == "double":
            content = content[: at + length] + content[at:]
        elif kind == "write":
            content = content[:at] + new + content[at + len(new) :]
        else:
            content = content[:at]
    return content


def lines_changed(lines: Sequence[str], odd: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Up to six lines dropped, doubled, moved, cut, or with a piece replaced by something ``odd``."""
    place = st.integers(0, len(lines) - 1)
    kind = st.sampled_from(["drop", "double", "move", "cut", "value", "piece", "add"])
    change = st.tuples(kind, place, place, odd)
    return st.lists(change, min_size=1, max_size=6).map(lambda changes: _lines(list(lines), changes))


def _lines(lines: list[str], changes: Sequence[tuple[str, int, int, str]]) -> list[str]:
    for kind, first, second, odd in changes:
        if not lines:
            break
        at, other = first % len(lines), second % len(lines)
        line = lines[at]
        if kind == "drop":
            del lines[at]
        elif kind == "double":
            lines.insert(other, line)
        elif kind == "move":
            lines[at], lines[other] = lines[other], line
        elif kind == "cut":
            lines[at] = line[: other % (len(line) + 1)]
        elif kind == "value":  # the last word: a sample's value
            lines[at] = f"{line.rpartition(' ')[0]} {odd}"
        elif kind == "piece":  # something between two quotes: a label's or a field's value
            pieces = line.split('"')
            pieces[other % len(pieces)] = odd
            lines[at] = '"'.join(pieces)
        else:
            lines.insert(at, odd)
    return lines
