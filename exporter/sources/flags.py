"""What an engine's command line says about its KV cache.

The spellings are those of vLLM 0.32.0 (engine/arg_utils.py, utils/argparse_utils.py,
entrypoints/launchers/cli_args.py) and SGLang 0.5.23 (srt/arg_groups/fields/*.py); both
are argparse, so argparse reads them here as well, abbreviations included.  Only the
fields of :class:`EngineFlags` are kept: a command line may hold keys and tokens.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NoReturn

import yaml

from exporter.engines.switches import OPTIONS, given
from exporter.sources.files import UnreadableError, read_bounded
from exporter.sources.speculative_flags import (
    is_speculative,
    method_in_use,
    option_of,
    speculative_words,
    spelt_out,
)
from exporter.sources.spellings import DEFAULT_PORTS, SWITCHES, UNRELATED_SWITCHES, UNRELATED_VALUES, VALUES

MAX_CONFIG_FILE_BYTES = 128 * 2**10  # PyYAML's pure reader takes about a second for it

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
}
_WITH_SUBCOMMAND = frozenset({"vllm", "sglang", "vllm.entrypoints.cli.main"})
# vLLM: 32k = 32000, 32K = 32768 (utils/argparse_utils.py); SGLang: 32k = 32000, 32Ki = 32768,
# and M, G, T are decimal there (srt/utils/common.py).
_DECIMAL = {"vllm": ("k", "m", "g", "t"), "sglang": ("k", "M", "G", "T")}
_BINARY = {"vllm": ("K", "M", "G", "T"), "sglang": ("Ki", "Mi", "Gi", "Ti")}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]{1,2})", re.ASCII)
_DOTTED = re.compile(r"(--?[A-Za-z][\w-]*)\.([^=]*)(=.*)?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """An engine process as its command line, environment and /proc entry tell it.

    None is "not said": with ``complete`` True the whole command line was
    understood, so the engine's default holds; with False it may have been said in
    a config file that could not be read.  ``max_model_len`` -1 or ``auto`` counts
    as not said.  ``model`` may also be None where it stands after an option that is
    not known here and might own it.  ``served_model_name`` is the first where there are several.
    ``environment`` holds allow-listed variables only; ``pid`` is 0 where unknown.
    """

    software: str  # "vllm" or "sglang"
    model: str | None = None
    served_model_name: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    decode_context_parallel_size: int | None = None
    block_size: int | None = None  # tokens; SGLang's page size
    max_model_len: int | None = None  # tokens
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    dtype: str | None = None
    enable_prefix_caching: bool | None = None
    hybrid_kv_cache_manager: bool | None = None
    speculative: bool | None = None
    speculative_method: str | None = None  # as in kvmath.speculation
    num_speculative_tokens: int | None = None
    port: int | None = None
    options: frozenset[str] = frozenset()  # those of engines/switches.py that were given
    complete: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: Path | None = None
    pid: int = 0

    @property
    def listening_port(self) -> int:
        """The port said, else the engine's default."""
        return self.port if self.port is not None else DEFAULT_PORTS[self.software]


def parse_flags(
    argv: Sequence[str], *, working_directory: Path | None = None, pid: int = 0
) -> EngineFlags | None:
    """The flags of ``argv`` if it starts an engine's server, else None.  Never raises.

    ``working_directory`` is the process's own: a relative ``--config`` file is read
    there and nowhere else.
    """
    entry = _entry(argv)
    if entry is None:
        return None
    software, arguments = entry
    # The first word after `serve` is the model, and stands above one in a config file.
    model = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    arguments, complete = _with_config_file(arguments, software, working_directory)
    arguments = [word for argument in arguments for word in _normal(argument, software)]
    if software == "vllm":
        arguments = spelt_out(arguments)
    try:
        seen, rest = _parser(software).parse_known_args(arguments)
    except _RejectedError:
        return EngineFlags(software, model=model, working_directory=working_directory, pid=pid)
    said: dict[str, object] = vars(seen)
    if software == "vllm" and model is None and rest and not rest[0].startswith("-"):
        model = rest[0]  # `vllm serve --port 8001 MODEL`: nothing unknown before it could own it

    def text(name: str) -> str | None:
        value = said.get(name)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, str) and value not in ("", "None") else None

    def count(name: str) -> int | None:
        return _count(text(name), software)

    def switch(name: str) -> bool | None:
        value = said.get(name)
        return value if isinstance(value, bool) else None

    model = model or text("model")
    method, draft = text("speculative_method"), text("speculative_model")
    config = text("speculative") not in (None, "null", "none")
    return EngineFlags(
        software=software,
        model=model,
        served_model_name=text("served_model_name"),
        tensor_parallel_size=count("tensor_parallel_size"),
        pipeline_parallel_size=count("pipeline_parallel_size"),
        data_parallel_size=count("data_parallel_size"),
        decode_context_parallel_size=count("decode_context_parallel_size"),
        block_size=count("block_size"),
        max_model_len=count("max_model_len"),
        max_num_batched_tokens=count("max_num_batched_tokens"),
        kv_cache_dtype=text("kv_cache_dtype"),
        dtype=text("dtype"),
        enable_prefix_caching=switch("enable_prefix_caching"),
        hybrid_kv_cache_manager=switch("hybrid_kv_cache_manager"),
        speculative=True if config or method or draft else None,
        speculative_method=method_in_use(software, method, draft, model),
        num_speculative_tokens=count("num_speculative_tokens"),
        port=count("port"),
        options=given(software, arguments),
        complete=complete,
        working_directory=working_directory,
        pid=pid,
    )


def _entry(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """The engine that ``argv`` starts and the words after its entry point.

    The entry point need not come first: an interpreter and its options, or tini, numactl
    and the like stand before it.
    """
    for i, word in enumerate(argv[:64]):
        if word == "-m" and i + 1 < len(argv):
            name, rest = argv[i + 1], list(argv[i + 2 :])
        else:
            path = PurePosixPath(word)
            # `python /site-packages/vllm/entrypoints/openai/api_server.py` is the module by its file.
            dotted = ".".join(path.with_suffix("").parts) if path.suffix == ".py" else ""
            name = next((m for m in _MODULES if f".{dotted}".endswith(f".{m}")), path.name)
            rest = list(argv[i + 1 :])
        if name in _WITH_SUBCOMMAND:
            if rest[:1] == ["serve"]:
                return _MODULES.get(name, name), rest[1:]
        elif name in _MODULES and (word == "-m" or word.endswith(".py")):
            return _MODULES[name], rest
    return None


class _RejectedError(Exception):
    """argparse refused the command line; its message may quote a secret and is dropped."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _RejectedError


@cache
def _parser(software: str) -> argparse.ArgumentParser:
    """Our few options of the engine's many.

    Options unknown here are left over.  An abbreviation that fits one of ours fits no other of the
    engine's, or the engine would have refused it.
    """
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    for name, options in VALUES[software].items():
        # "?" and "*" rather than exactly one: a missing value must not cost us all the others.
        parser.add_argument(*options, dest=name, nargs="*" if name == "served_model_name" else "?")
    for option, (name, value) in SWITCHES[software].items():
        parser.add_argument(option, dest=name, action="store_const", const=value)
    for option in UNRELATED_SWITCHES[software]:
        parser.add_argument(option, dest="unrelated_switch", action="store_true")
    for option in UNRELATED_VALUES[software]:
        parser.add_argument(option, dest="unrelated_value", nargs="?")
    return parser


def _normal(word: str, software: str) -> list[str]:
    """A word as vLLM's FlexibleArgumentParser hands it to argparse.

    Underscores of a long option become dashes; ``--speculative-config.method x`` sets a
    key of the option's JSON, which ``--spec-method x`` does as well.
    """
    if software == "vllm":
        dotted = _DOTTED.fullmatch(word)
        if dotted:
            word = option_of(dotted[1], dotted[2]) + (dotted[3] or "")
    if not word.startswith("--"):
        return [word]
    option, equals, value = word.partition("=")
    return [option.replace("_", "-") + equals + value]


def _count(text: str | None, software: str) -> int | None:
    """A positive integer as the engine's own reader takes it, else None."""
    if text is None:
        return None
    text = text.strip()
    try:
        match = _NUMBER.fullmatch(text)
        if match is None:
            value = int(text)
        elif match[2] in _DECIMAL[software]:
            value = int(float(match[1]) * 1000 ** (_DECIMAL[software].index(match[2]) + 1))
        else:
            value = int(match[1]) * 1024 ** (_BINARY[software].index(match[2]) + 1)
    except (ValueError, OverflowError):
        return None
    return value if value > 0 else None


def _with_config_file(arguments: list[str], software: str, directory: Path | None) -> tuple[list[str], bool]:
    """``arguments`` with the ``--config`` file's in front, and whether that went well.

    Both engines read the file only for the two-word form: `--config=x.yaml` is accepted and
    ignored (vLLM 0.32.0 utils/argparse_utils.py, SGLang 0.5.23 server_args.py).
    """
    if "--config" not in arguments:
        return arguments, True
    at = arguments.index("--config")
    rest = arguments[:at] + arguments[at + 2 :]
    if at + 1 >= len(arguments):
        return rest, False
    loaded = _load(arguments[at + 1], directory)
    if loaded is None:
        return rest, False
    return [word for key, value in loaded.items() for word in _as_words(key, value, software)] + rest, True


def _load(name: str, directory: Path | None) -> Mapping[object, object] | None:
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):  # the engines refuse other names
        return None
    if not path.is_absolute():
        if directory is None:
            return None
        path = directory / path
    try:
        content = yaml.safe_load(read_bounded(path, MAX_CONFIG_FILE_BYTES))
    except (UnreadableError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _as_words(key: object, value: object, software: str) -> list[str]:
    """One entry of a config file as command line words; none for options we do not keep."""
    option = "--" + str(key).replace("_", "-")
    switches = SWITCHES[software]
    if isinstance(value, bool):
        option = option if value else "--no-" + option[2:]
        return [option] if option in switches or option in OPTIONS[software] else []
    if option in OPTIONS[software]:
        return [f"{option}="]  # given; what it says is not kept
    if not any(option in options for options in VALUES[software].values()):
        return []
    # Aliases can make a small file a huge text: nothing nested is ever turned into text.
    if isinstance(value, dict):
        return [f"{option}={{}}", *(speculative_words(value) if is_speculative(option) else [])]
    if isinstance(value, list):
        return [option, *(str(item) for item in value[:1] if isinstance(item, str | int))]
    return [f"{option}={value}"] if isinstance(value, str | int | float) else []
