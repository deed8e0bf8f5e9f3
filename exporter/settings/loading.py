"""Flags, then environment, then file -> the settings of one command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, ValidationError
from pydantic_core import PydanticUndefined
from pydantic_settings import (
    BaseSettings,
    CliPositionalArg,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

ENV_PREFIX = "KVCACHE_EXPORTER_"
CONFIG_FLAG = "--config-file"
# Prometheus and its exporters spell this one with dots.
SPELT_WITH_DOTS = {"--web.config.file": "--web-config-file"}
# Names of the settings of every command, filled as the commands are defined: one
# environment and one file serve them all.
SHARED_NAMES: set[str] = set()
_POSITIONAL = get_args(CliPositionalArg[str])[1]


class CommandSettings(BaseSettings):
    """Where the settings of every command come from."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        extra="forbid",
        populate_by_name=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        env_ignore_empty=True,
        nested_model_default_partial_update=False,
    )

    config_file: Path | None = Field(default=None, description="YAML file with these settings")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _SharedFile(settings_cls))


class _SharedFile(YamlConfigSettingsSource):
    """One file serves all commands: each passes over what only another one knows."""

    def __call__(self) -> dict[str, Any]:
        others = SHARED_NAMES - names_of(self.settings_cls)
        return {
            key: value for key, value in super().__call__().items() if key.replace("-", "_") not in others
        }


def names_of(*kinds: type[BaseSettings]) -> set[str]:
    """The public names of the settings of ``kinds``."""
    return {field_name(name) for kind in kinds for name in kind.model_fields}


def field_name(attribute: str) -> str:
    """The public spelling of a field (see ``model_config_path``)."""
    return "model_config" if attribute == "model_config_path" else attribute


def flags(kind: type[CommandSettings]) -> list[tuple[str, str, str]]:
    """(flag, default, meaning) of every setting of a command, for help and documentation; an argument
    that is no flag is in capitals."""
    rows: list[tuple[str, str, str]] = []
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        words = default if isinstance(default, list) else [default]
        unset = (None, "", PydanticUndefined)
        shown = " ".join(str(getattr(word, "url", word)) for word in words if word not in unset)
        flag = name.upper() if _POSITIONAL in field.metadata else f"--{field_name(name).replace('_', '-')}"
        rows.append((flag, shown, field.description or ""))
    return rows


def load(kind: type[CommandSettings], arguments: Sequence[str]) -> Any:
    """The settings of one command from its arguments, environment and file.

    Raises ``pydantic.ValidationError``, ``SettingsError`` or ``ValueError`` on bad
    input, which the caller turns into one line; ``SystemExit`` after ``--help``.
    """
    _check_environment(kind)
    arguments = [_spelt(argument) for argument in arguments]
    loaded, source = _parser(kind, _config_file(arguments))
    parsed = source(args=_repeat_lists(arguments, kind))
    return loaded(_cli_settings_source=parsed)  # type: ignore[call-arg]  # a pydantic-settings argument


def problems(error: ValidationError) -> list[str]:
    """What is wrong, a line each: which setting and why, never its value."""
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in problem["loc"]) or "settings"
        lines.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
    return lines


def origins(kind: type[CommandSettings], arguments: Sequence[str]) -> dict[str, str]:
    """Where each setting has its value from: flag, environment, file or default.  Raises as :func:`load`."""
    given = {_spelt(argument).partition("=")[0] for argument in arguments}
    path = _config_file(arguments)
    in_file: set[str] = set()
    if path is not None:
        import yaml  # noqa: PLC0415

        in_file = {str(key).replace("-", "_") for key in yaml.safe_load(path.read_text()) or {}}
    found: dict[str, str] = {}
    for name in names_of(kind):
        if f"--{name.replace('_', '-')}" in given:
            found[name] = "flag"
        elif os.environ.get(f"{ENV_PREFIX}{name}".upper()):
            found[name] = "environment"
        else:
            found[name] = "file" if name in in_file else "default"
    return found


def _spelt(argument: str) -> str:
    flag, equals, value = argument.partition("=")
    return SPELT_WITH_DOTS.get(flag, flag) + equals + value


@lru_cache(maxsize=8)
def _parser(
    kind: type[CommandSettings], file: Path | None
) -> tuple[type[CommandSettings], CliSettingsSource[Any]]:
    """The settings class bound to its file, and its parser: kept, for building them is most of the work."""
    loaded: type[CommandSettings] = type(
        kind.__name__,
        (kind,),
        {
            "model_config": SettingsConfigDict(yaml_file=file),
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
        },
    )
    name = kind.__name__.removesuffix("Settings").lower()
    return loaded, CliSettingsSource(loaded, cli_prog_name=f"kvcache-exporter {name}")


def _check_environment(kind: type[CommandSettings]) -> None:
    """A misspelt variable must not pass for a default.  Raises ValueError."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in names_of(kind) | SHARED_NAMES}
    known.add(f"{ENV_PREFIX}PLUGIN_URL")  # the vLLM plugin's own
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            raise ValueError(f"{name}: no such setting")


def _config_file(arguments: Sequence[str]) -> Path | None:
    named: str | None = os.environ.get(f"{ENV_PREFIX}CONFIG_FILE")
    for n, argument in enumerate(arguments):
        if argument == CONFIG_FLAG and n + 1 < len(arguments):
            named = arguments[n + 1]
        elif argument.startswith(f"{CONFIG_FLAG}="):
            named = argument.partition("=")[2]
    if not named:
        return None
    import yaml  # noqa: PLC0415  (a tenth of a second that most commands need not wait)

    path = Path(named)
    try:
        said = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeError, RecursionError):
        raise ValueError(f"{path}: not YAML") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if said is not None and not isinstance(said, dict):
        raise ValueError(f"{path}: settings are a mapping of names to values")
    return path


def _repeat_lists(arguments: Sequence[str], kind: type[CommandSettings]) -> list[str]:
    """``--context 4096 8192`` -> ``--context 4096 --context 8192``: people write
    both, the settings library knows the second."""
    lists = {
        "--" + name.replace("_", "-") for name, f in kind.model_fields.items() if "list" in str(f.annotation)
    }
    out: list[str] = []
    current = ""
    values = 0
    for argument in arguments:
        if argument.startswith("-"):
            current = argument if argument in lists else ""
            values = 0
        elif current:
            values += 1
            if values > 1:
                out.append(current)
        out.append(argument)
    return out
