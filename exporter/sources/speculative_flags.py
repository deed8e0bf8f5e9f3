"""Speculative decoding on a command line: vLLM says it in JSON, in options of its own, or in both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from exporter.kvmath.speculation import known_method
from exporter.sources.spellings import SPECULATIVE_KEYS, VALUES

MAX_JSON_CHARACTERS: Final = 2**16


def is_speculative(option: str) -> bool:
    """True for vLLM's JSON option of speculative decoding."""
    return option.replace("_", "-") in VALUES["vllm"]["speculative"]


def option_of(option: str, key: str) -> str:
    """``option.key`` as an option of its own, where there is one; else ``option``."""
    return SPECULATIVE_KEYS.get(key.replace("-", "_"), option) if is_speculative(option) else option


def spelt_out(arguments: Sequence[str]) -> list[str]:
    """vLLM's JSON option followed by what it says in options of their own; other JSON is left alone."""
    words: list[str] = []
    for at, word in enumerate(arguments):
        words.append(word)
        option, equals, value = word.partition("=")
        if at and not equals and not word.startswith("-"):
            option, value = arguments[at - 1], word
        if not is_speculative(option) or len(value) > MAX_JSON_CHARACTERS:
            continue
        try:
            said = json.loads(value)
        except (ValueError, RecursionError):
            continue
        words += speculative_words(said)
    return words


def speculative_words(said: object) -> list[str]:
    """What vLLM's JSON says, as options of their own."""
    if not isinstance(said, dict):
        return []
    told = ((option, said.get(key)) for key, option in SPECULATIVE_KEYS.items())
    return [f"{option}={value}" for option, value in told if isinstance(value, str | int)]


def method_in_use(software: str, method: str | None, draft: str | None, model: str | None) -> str | None:
    """The method in use.  SGLang's EAGLE without a checkpoint of its own drafts with the model's own
    layers (0.5.23 ``arg_groups/speculative_hook.py``)."""
    name = known_method(method)
    return "mtp" if software == "sglang" and name == "eagle" and draft in (None, model) else name
