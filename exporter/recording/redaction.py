"""What goes into a recording: an allow-list, so that the unknown stays out.

Pages keep metric names, label names and values of samples; help texts go, and of
label values only those that an engine makes up itself, numbers, and names stay.
Info endpoints keep the fields of :mod:`exporter.engines.public`; ``config.json``
keeps its numbers and the words of the architecture.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from exporter.engines.public import ENGINES, INFO_FIELDS, LABELS, Fields, Kind
from exporter.facts import Facts
from exporter.recording.names import Names, is_word

REDACTED: Final = "redacted"
# Entries of /v1/models (LoRA adapters among them).
MAX_ENTRIES = 256
MAX_CACHED_HEADS = 50_000
MAX_DEPTH = 16

_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII)
_NUMBER = r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|inf|nan)"
_VALUE = rf"\s+{_NUMBER}(?:\s+-?\d+)?\s*"  # a time stamp may follow
_TAIL = re.compile(_VALUE, re.ASCII | re.IGNORECASE)
_SAMPLE = re.compile(rf"([A-Za-z_:][\w:]*)\s*(?:\{{(.*)\}})?({_VALUE})", re.ASCII | re.IGNORECASE)
_TYPE = re.compile(r"# TYPE [A-Za-z_:][\w:]* [a-z]{1,20}", re.ASCII)
_HELP = re.compile(r"# HELP ([A-Za-z_:][\w:]*)(?: (.*))?", re.ASCII)
_FLAG = re.compile(r"true|false|none|auto|", re.IGNORECASE)
_NUMBER_OR_FLAG = re.compile(rf"{_NUMBER}|{_FLAG.pattern}", re.ASCII | re.IGNORECASE)

# Words of config.json that say what the architecture and the number formats are.
CONFIG_WORDS: Final = frozenset({
    "architectures", "attn_type", "attn_types", "block_types", "cache_implementation", "dtype",
    "expert_dtype",
    "fmt", "format", "hybrid_override_pattern", "indexer_types", "kv_cache_quant_algo", "layer_types",
    "layers_block_type", "mamba_ssm_cache_dtype", "mamba_ssm_dtype", "mlp_layer_types", "model_type",
    "moe_quant_algo", "mtp_hybrid_override_pattern", "mtp_layers_block_type", "position_embedding_type",
    "quant_algo", "quant_method", "rope_type", "sliding_window_pattern", "strategy", "torch_dtype", "type",
    "use_bidirectional_attention",
})  # fmt: skip
# Mappings whose very keys are somebody's words.
CONFIG_LEFT_OUT: Final = frozenset({"id2label", "label2id", "task_specific_params", "label_names"})
_CONFIG_KEY = re.compile(r"[A-Za-z_0-9][\w.]{0,127}", re.ASCII)
_CONFIG_WORD = re.compile(r"[\w.*|+-]{0,1024}", re.ASCII)


class Redactor:
    """One recording's redaction; ``counts`` says how much was left out."""

    def __init__(self, *, names: bool = False) -> None:
        """``names``: models, adapters and routes are replaced by numbers, too."""
        self.names = Names(names)
        self._counts: Counter[str] = Counter()
        self._heads: dict[str, str] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """What was left out or replaced so far, by kind."""
        return self._counts + self.names.changed

    # -- pages ---------------------------------------------------------------

    def page(self, text: str) -> str:
        """A page of ``/metrics`` as it may be shown."""
        lines = [kept for line in text.split("\n") if (kept := self._line(line.rstrip("\r"))) is not None]
        return "\n".join(lines) + "\n" if lines else ""

    def _line(self, line: str) -> str | None:
        if not line.strip():
            return None
        if line.startswith("#"):
            return self._comment(line)
        head, brace, tail = line.rpartition("}")
        kept = self._heads.get(head) if brace else None
        if kept is not None and _TAIL.fullmatch(tail):
            return kept + tail.rstrip()
        sample = _SAMPLE.fullmatch(line)
        labels = self._labels(sample[1], sample[2] or "") if sample else None
        if sample is None or labels is None:
            self._counts["lines"] += 1
            return None
        value = sample[3].rstrip()
        if not brace:
            return sample[1] + value
        kept = f"{sample[1]}{{{labels}}}"
        # Labels repeat from page to page, only values move.
        if len(self._heads) < MAX_CACHED_HEADS:
            self._heads[head] = kept
        return kept + value

    def _comment(self, line: str) -> str | None:
        if _TYPE.fullmatch(line):
            return line
        told = _HELP.fullmatch(line)
        if told is None:
            self._counts["lines"] += 1
            return None
        if told[2] not in (None, "", "-"):
            self._counts["help texts"] += 1
        return f"# HELP {told[1]} -"

    def _labels(self, metric: str, text: str) -> str | None:
        """The labels between the braces; None where they can't be read."""
        kept: list[str] = []
        at = 0
        while at < len(text):
            label = _LABEL.match(text, at)
            if label is None:
                return None
            at = label.end()
            kept.append(f'{label[1]}="{self._label_value(metric, label[1], label[2])}"')
        return ",".join(kept)

    def _label_value(self, metric: str, name: str, value: str) -> str:
        kind = LABELS.get(name)
        if kind is None:
            # An engine's info metric has its settings for labels; elsewhere a number may be somebody's.
            public = _NUMBER_OR_FLAG if metric.endswith("_info") else _FLAG
            shown = value if public.fullmatch(value) else self.names.number("value", value)
        else:
            shown = self.names.public(kind, value)
        if shown != value and kind in (None, Kind.VALUE, Kind.API_PATH, Kind.INDEX):
            self._counts["label values"] += 1
        return shown

    # -- info endpoints ------------------------------------------------------

    def document(self, document: object) -> object:
        """An info endpoint's JSON, with the public fields only."""
        kept = self._fields(INFO_FIELDS, document)
        # A version alone is vLLM's /version; what is left of something else must not pass for it.
        return {} if kept != document and isinstance(kept, dict) and set(kept) == {"version"} else kept

    def _fields(self, kinds: Fields, document: object) -> object:
        if not isinstance(document, dict):
            return None if document is None else REDACTED
        self._counts["fields of info endpoints"] += len(document.keys() - kinds.keys())
        return {name: self._field(kinds[name], document[name]) for name in kinds if name in document}

    def _field(self, kind: Kind | Fields | tuple[Fields], value: object) -> object:
        if isinstance(kind, tuple):
            entries = value if isinstance(value, list) else []
            return [self._fields(kind[0], entry) for entry in entries[:MAX_ENTRIES]]
        if isinstance(kind, Mapping):
            return self._fields(kind, value)
        if isinstance(value, list) and kind in (Kind.MODEL, Kind.VALUE):  # served names, label names
            return [self._field(kind, one) for one in value[:MAX_ENTRIES]]
        if not isinstance(value, str):
            return _plain(value)
        if kind is Kind.ENGINE:
            return value if value in ENGINES else REDACTED
        if kind is Kind.VALUE:
            return value if is_word(value) else REDACTED
        return self.names.public(kind, value)

    def command_line(self, said: Facts) -> Facts:
        """What the engine's command line says, without the model's name and path."""
        words = {f.name: getattr(said, f.name) for f in fields(said)}
        masked: dict[str, Any] = {
            n: REDACTED for n, word in words.items() if isinstance(word, str) and not is_word(word)
        }
        return replace(said, **{**masked, "model": None, "served_model_name": None})

    # -- config.json ---------------------------------------------------------

    def config(self, config: Mapping[str, object]) -> dict[str, Any]:
        """``config.json`` with its numbers, and words only where they name the architecture."""
        return self._config_object(config, 0)

    def _config_object(self, config: Mapping[str, object], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name, value in config.items():
            public = _CONFIG_KEY.fullmatch(name) and name not in CONFIG_LEFT_OUT
            if not public or (isinstance(value, str) and name not in CONFIG_WORDS):
                self._counts["fields of config.json"] += 1
            else:
                kept[name] = self._config_value(name, value, depth + 1)
        return kept

    def _config_value(self, name: str, value: object, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return None
        if isinstance(value, dict):
            return self._config_object(value, depth)
        if isinstance(value, list):
            return [self._config_value(name, one, depth + 1) for one in value]
        if isinstance(value, str):
            public = name in CONFIG_WORDS and _CONFIG_WORD.fullmatch(value)
            return value if public else REDACTED
        return _plain(value)


def _plain(value: object) -> object:
    """Numbers, flags and null; anything else is not shown.  JSON has no infinity, which some configs hold."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return REDACTED
