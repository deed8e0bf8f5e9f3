"""One line of SGLang's request log -> the few values wanted; the rest is never decoded.

A line is a flat JSON object (0.5.23 ``observability/request_metrics_exporter.py``)
whose ``request_parameters`` is JSON text inside a JSON string, with the prompt or
its token ids in it.  Decoding the line and forgetting the prompt would have the
prompt in memory as text; so the line is walked token by token, as bytes, and
only the values of wanted keys are decoded.  A quote inside a string is always
escaped, so nothing a client writes can look like a key of the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

# A string, a bracket, a separator, or a bare word; a lone quote is an unterminated string.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]++|"')
# The same one level down, where every quote has a backslash and every backslash two: a whole inner string
# (inner escapes are a double backslash and what follows), or a bracket.
_INNER = re.compile(
    rb'\\"((?:[^"\\]++|\\\\(?:\\\\|\\"|[^"\\]))*+)\\"|[{}\[\]]',
)
_OPEN, _CLOSE = (b"{", b"["), (b"}", b"]")
_MAX_VALUE_BYTES = 256
_MAX_ROUTE_BYTES = 128
_PARAMETERS = b'"request_parameters"'
_LABELS, _ROUTE = b"custom_labels", b"route"

Value = float | int | str | bool | None


class Malformed(ValueError):
    """Not a line of this log; the message never quotes the line."""


def values(line: bytes, wanted: Collection[str], *, route: bool = False) -> dict[str, Value]:
    """The scalar values of ``wanted`` keys; with ``route`` also the label ``route`` ("" if none).

    Raises :class:`Malformed` where the line is no JSON object from end to end.
    """
    keys = {b'"%s"' % key.encode(): key for key in wanted}
    found: dict[str, Value] = {}
    depth = 0
    key: bytes | None = None
    expect = "start"
    for match in _TOKEN.finditer(line):
        token = match.group() if match.end() - match.start() <= _MAX_VALUE_BYTES else b'"'
        first = line[match.start() : match.start() + 1]
        if first == b'"' and match.end() - match.start() == 1:
            raise Malformed("an unterminated string")
        if expect == "start":
            if first != b"{":
                raise Malformed("no object")
            depth, expect = 1, "key"
        elif expect == "end":
            raise Malformed("something after the object")
        elif depth > 1:
            depth += (first in _OPEN) - (first in _CLOSE)
            expect = "comma" if depth == 1 else expect
        elif expect == "key":
            if first == b"}":
                expect = "end"
            elif first == b'"':
                key, expect = token, "colon"
            else:
                raise Malformed("a key that is no string")
        elif expect == "colon":
            if first != b":":
                raise Malformed("a key without a value")
            expect = "value"
        elif expect == "value":
            if first in _OPEN:
                depth, expect = 2, "nested"
                continue
            if first in _CLOSE or first in (b",", b":"):
                raise Malformed("a key without a value")
            if key in keys:
                found[keys[key]] = _scalar(token)
            elif route and key == _PARAMETERS:
                found["route"] = route_of(line, match.start() + 1, match.end() - 1)
            expect = "comma"
        elif first == b",":
            expect = "key"
        elif first == b"}":
            expect = "end"
        else:
            raise Malformed("no comma between two keys")
    if expect != "end":
        raise Malformed("the object has no end")
    return found


def _scalar(token: bytes) -> Value:
    try:
        value: Value = json.loads(token)
    except ValueError:
        raise Malformed("a value that is no JSON") from None
    return value


def route_of(line: bytes, start: int = 0, end: int | None = None) -> str:
    """``custom_labels.route`` out of the escaped parameters ``line[start:end]``, "" if there is none.

    Strings are stepped over, not decoded; only one at the right depth under the
    right keys is returned, and only if it is short and needs no unescaping.
    Clients choose both the prompt and ``sampling_params.custom_params``: depth is
    what tells the engine's own ``custom_labels`` from a look-alike.
    """
    depth = 0
    inside = False
    previous: bytes | None = None
    for match in _INNER.finditer(line, start, len(line) if end is None else end):
        string = match.span(1)
        if string[0] < 0:
            bracket = match.group()
            if bracket in _OPEN:
                depth += 1
                inside = depth == 2 and bracket == b"{" and previous == _LABELS
            else:
                if inside and depth == 2:
                    return ""
                depth -= 1
            previous = None
        elif depth == 1 or (inside and depth == 2):
            text = line[string[0] : string[1]] if string[1] - string[0] <= _MAX_ROUTE_BYTES else None
            if inside and previous == _ROUTE:
                return text.decode(errors="replace") if text is not None and b"\\" not in text else ""
            is_key = line[match.end() : match.end() + 1] == b":"
            previous = text if is_key else None
    return ""
