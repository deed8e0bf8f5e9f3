"""What one source says about an engine's set-up, and who wins where two speak.

A source (the engine itself, the user's settings, the engine's command line,
``config.json``) is a :class:`Facts` in which ``None`` means "this source is
silent".  :func:`resolve` makes one :class:`Choice` of them, in the order
engine, setting, command line, config, engine's own default; a source that says
otherwise is kept in ``disagrees`` and reported, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import cast

Value = int | str | bool


class Source(StrEnum):
    """Where a fact came from, most trusted first."""

    ENGINE = "engine"
    SETTING = "setting"
    COMMAND_LINE = "command_line"
    CONFIG = "config"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Facts:
    """One source's statements.  ``None``: it does not say."""

    software: str | None = None
    version: str | None = None
    model: str | None = None  # path or hub id
    served_model_name: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_total_num_tokens: int | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    state_dtype: str | None = None  # of recurrent states (SSM part)
    enable_prefix_caching: bool | None = None
    hybrid_kv_cache_manager: bool | None = None
    speculative: bool | None = None
    speculative_method: str | None = None  # as in kvmath.speculation
    num_speculative_tokens: int | None = None
    async_scheduling: bool | None = None
    tracking_states: int | None = None  # SGLang: states a running sequence records besides its own
    options: frozenset[str] | None = None  # those of engines/switches.py that it was started with

    @classmethod
    def inputs(cls) -> tuple[str, ...]:
        """Names of those that the arithmetic may ask for."""
        return tuple(f.name for f in fields(cls) if f.name != "options")

    def filled_from(self, other: Facts) -> Facts:
        """This one, with what it leaves open taken from ``other``."""
        mine = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: getattr(other, n) for n, value in mine.items() if value is None})


@dataclass(frozen=True, slots=True)
class Choice:
    """A resolved fact: the value, who said it, and who said something else."""

    name: str
    value: Value | None
    source: Source | None
    disagrees: tuple[tuple[Source, Value], ...] = ()

    @property
    def assumed(self) -> bool:
        """True where nobody said it and the engine's default was taken."""
        return self.source is Source.DEFAULT


def resolve(name: str, said: Iterable[tuple[Source, Value | None]]) -> Choice:
    """The first source that speaks wins; different values are listed."""
    spoken = [(source, value) for source, value in said if value is not None]
    if not spoken:
        return Choice(name, None, None)
    source, value = spoken[0]
    others = tuple((s, v) for s, v in spoken[1:] if v != value and s is not Source.DEFAULT)
    return Choice(name, value, source, others)


def statements(name: str, facts: Mapping[Source, Facts]) -> list[tuple[Source, Value | None]]:
    """What every source says about ``name``, most trusted first."""
    return [
        (source, cast("Value | None", getattr(facts[source], name))) for source in Source if source in facts
    ]
