"""Names in public: paths shortened, or every name replaced by a number."""

from __future__ import annotations

import re
from collections import Counter

from exporter.engines.public import API_PATHS, Kind

# Absolute, so that nobody's lookup finds another model of that name on the reader's disk.
NOWHERE = "/nonexistent/"
# Further values of one kind are all called the same: a hostile page must not fill the memory.
MAX_NAMES = 10_000

_SNAPSHOT = re.compile(r"models--([^/]+)/snapshots/[0-9a-f]{7,64}/?$")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PLAIN = re.compile(r"[\w.:+-]{1,128}", re.ASCII)
_WORD = re.compile(r"[\w.:+\[\]-]{1,64}", re.ASCII)
# A bound of a histogram is one, too.
_INDEX = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?|[+-]?Inf|", re.ASCII | re.IGNORECASE)
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){3,}")


class Names:
    """What stands for a name or a label's value, the same one throughout a recording."""

    def __init__(self, replace: bool) -> None:
        """``replace``: models, adapters and routes become ``model-1``, ``model-2``, ..."""
        self.replace = replace
        self.changed: Counter[str] = Counter()
        self._numbers: dict[str, dict[str, str]] = {}
        self._places: dict[str, dict[str, int]] = {}

    def public(self, kind: Kind, value: str) -> str:
        """``value`` as it may be shown."""
        if kind is Kind.ADAPTER:
            return ",".join(self._name(kind, one.strip()) for one in value.split(",")) if value else value
        if kind in (Kind.MODEL, Kind.LOCATION, Kind.ROUTE):
            return self._name(kind, value)
        if kind is Kind.API_PATH:
            return value if value in API_PATHS else self.number("value", value)
        if kind is Kind.INDEX:
            return value if _INDEX.fullmatch(value) else self.number("value", value)
        return value if is_word(value) else self.number("value", value)

    def _name(self, kind: Kind, value: str) -> str:
        if not value:
            return value
        shown = hub_id(value) or _last(value)
        if self.replace or not _is_name(shown):
            shown = self.number("model" if kind is Kind.LOCATION else str(kind), shown)
        if kind is Kind.LOCATION and "/" in value and hub_id(value) is None:
            shown = NOWHERE + self._apart(shown, value)
        if shown != value:
            self.changed["names"] += 1
        return shown

    def _apart(self, last: str, path: str) -> str:
        """The last part of a path; numbered where another path has the same (a draft beside its model)."""
        places = self._places.setdefault(last, {})
        number = places.setdefault(path, len(places) + 1)
        return last if number == 1 else f"{last}-{number}"

    def number(self, kind: str, value: str) -> str:
        """A stand-in for ``value``: distinct values stay distinct, so that series do."""
        numbers = self._numbers.setdefault(kind, {})
        if value not in numbers:
            if len(numbers) >= MAX_NAMES:
                return f"{kind}-more"
            numbers[value] = f"{kind}-{len(numbers) + 1}"
        return numbers[value]


def is_word(value: str) -> bool:
    """Whether ``value`` is empty or one word that is neither a path nor an address."""
    return not value or (bool(_WORD.fullmatch(value)) and not _ADDRESS.search(value))


def hub_id(value: str) -> str | None:
    """The repository ``owner/name`` that ``value`` is, or that its path in a hub cache stands for."""
    if snapshot := _SNAPSHOT.search(value):
        value = snapshot[1].replace("--", "/", 1)
    return value if _HUB_ID.fullmatch(value) and not _ADDRESS.search(value) else None


def _last(value: str) -> str:
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1]


def _is_name(value: str) -> bool:
    return (bool(_PLAIN.fullmatch(value)) or hub_id(value) is not None) and not _ADDRESS.search(value)
