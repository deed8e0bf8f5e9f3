"""Reading numbers out of a config.json that may hold anything.

A problem ends the reading of the whole config: it is raised as
:class:`Refused` and becomes the ``Unavailable`` that ``read_model`` returns.
Details name the field and never repeat its value, which may be megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from exporter.kvmath.known import Reason, Unavailable

LAYER_LIMIT: Final = 10_000  # the deepest published model has a few hundred
_COUNT_LIMIT: Final = 10**6  # heads, head sizes, hidden sizes
_TOKEN_LIMIT: Final = 10**9  # windows: Phi-3 says 262,144, beyond its own context


class Refused(Exception):
    """The config cannot be used: why, as the value ``read_model`` returns."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.unavailable = Unavailable(reason, detail)


def bad(detail: str) -> Refused:
    """A field is missing, malformed or contradicts another."""
    return Refused(Reason.BAD_MODEL_CONFIG, detail)


def unsupported(detail: str) -> Refused:
    """The field means a cache this arithmetic does not cover."""
    return Refused(Reason.UNSUPPORTED_ATTENTION, detail)


class Fields:
    """A config's fields by name, with class defaults for those a nested text config may omit."""

    def __init__(self, config: Mapping[str, object], defaults: Mapping[str, int]) -> None:
        self._config = config
        self._defaults = defaults

    def raw(self, name: str) -> object:
        """The field as it stands; None where absent or null."""
        return self._config.get(name)

    def given(self, name: str) -> bool:
        """True where the field is present, even as null."""
        return name in self._config

    def first(self, names: tuple[str, ...]) -> str | None:
        """The first of ``names`` that holds a value (not absent, not null), default or not."""
        for name in names:
            if self._config.get(name) is not None:
                return name
        return next((name for name in names if name in self._defaults), None)

    def count(self, names: tuple[str, ...], limit: int = _COUNT_LIMIT) -> int:
        """The positive whole number under the first of ``names`` that holds a value."""
        name = self.first(names)
        if name is None:
            raise bad(f"{names[0]}: missing")
        value = self._config.get(name)
        return self._positive(name, self._defaults[name] if value is None else value, limit)

    def count_or(self, names: tuple[str, ...], otherwise: int) -> int:
        """As :meth:`count`, with a fallback where none of ``names`` holds a value."""
        return otherwise if self.first(names) is None else self.count(names)

    def window(self, class_default: int) -> int:
        """``sliding_window`` in tokens, 0 where there is none: null or 0 turn it off.

        ``class_default`` is what the engines take where the field is absent.
        (vLLM 0.32.0 config/model.py treats 0 as off.)
        """
        value = self._config.get("sliding_window", class_default or None)
        if value is None or (value == 0 and not isinstance(value, bool)):
            return 0
        return self._positive("sliding_window", value, _TOKEN_LIMIT)

    def flag(self, name: str, otherwise: bool) -> bool:
        """A true/false field; ``otherwise`` where absent or null."""
        value = self._config.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise bad(f"{name}: expected true or false, found {type(value).__name__}")
        return value

    def section(self, name: str) -> Fields:
        """A nested object's fields; none where it is absent."""
        value = self._config.get(name)
        if value is None:
            return Fields({}, {})
        if not isinstance(value, Mapping):
            raise bad(f"{name}: expected an object, found {type(value).__name__}")
        return Fields(value, {})

    def layer_types(self, layers: int, longer: bool = False) -> list[bool] | None:
        """Per layer, True where ``layer_types`` says sliding; None where the field is absent or null.

        ``longer``: entries beyond the decoder (draft layers) are allowed and ignored.
        """
        value = self._config.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list):
            raise bad(f"layer_types: expected a list, found {type(value).__name__}")
        if len(value) < layers or (len(value) > layers and not longer):
            raise bad(f"layer_types: {len(value)} entries for {layers} layers")
        if any(word not in ("full_attention", "sliding_attention") for word in value[:layers]):
            raise unsupported("layer_types: a layer that is neither full nor sliding attention")
        return [word == "sliding_attention" for word in value[:layers]]

    def words(self, name: str, layers: int, allowed: Collection[str]) -> list[str] | None:
        """A list of one word per layer out of ``allowed``; None where the field is absent or null."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise bad(f"{name}: expected a list, found {type(value).__name__}")
        if len(value) != layers:
            raise bad(f"{name}: {len(value)} entries for {layers} layers")
        if not all(isinstance(word, str) and word in allowed for word in value):
            raise unsupported(f"{name}: a layer that is none of {', '.join(sorted(allowed))}")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers of at least 0; None where the field is absent or null."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise bad(f"{name}: expected a list, found {type(value).__name__}")
        if len(value) > LAYER_LIMIT:
            raise bad(f"{name}: more than {LAYER_LIMIT} entries")
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in value):
            raise bad(f"{name}: expected whole numbers of at least 0")
        return value

    def whole(self, name: str, otherwise: int) -> int:
        """A whole number of at least 0 (an offset, a count that may be none)."""
        value = self._config.get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad(f"{name}: expected a whole number, found {type(value).__name__}")
        if not 0 <= value <= _COUNT_LIMIT:
            raise bad(f"{name}: expected a number from 0 to {_COUNT_LIMIT}")
        return value

    def text(self, name: str) -> str:
        """A text field, "" where absent or null."""
        value = self._config.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise bad(f"{name}: expected text, found {type(value).__name__}")
        return value

    def objects(self, name: str, layers: int) -> list[Fields]:
        """A list of one object per layer."""
        value = self._config.get(name)
        if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
            raise bad(f"{name}: expected a list of objects")
        if len(value) != layers:
            raise bad(f"{name}: {len(value)} entries for {layers} layers")
        return [Fields(entry, {}) for entry in value]

    def _positive(self, name: str, value: object, limit: int) -> int:
        if isinstance(value, list):
            raise unsupported(f"{name}: one value per layer")
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad(f"{name}: expected a whole number, found {type(value).__name__}")
        if value < 1:
            raise bad(f"{name}: below 1")
        if value > limit:
            raise bad(f"{name}: above {limit}")
        return value
