"""Real configs, damaged, as files: found or refused with a reason, and no figure that can't be one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.engines.info import parse_document, read_documents
from exporter.kvmath.known import Reason, known
from exporter.lookup import load_model
from exporter.settings import TargetSettings
from exporter.target import TargetState

from .mutations import EXAMPLES, bytes_changed
from .surface import check

DATA, RECORDINGS = Path(__file__).parents[1] / "data", Path(__file__).parents[1] / "recordings"
TEXTS = [path.read_bytes() for path in sorted((DATA / "kv" / "configs").glob("*.json"))]
CONFIGS: list[dict[str, Any]] = [json.loads(text) for text in TEXTS]
FIELDS = sorted({name for config in CONFIGS for name in config})
ENGINES = {
    "vllm": ("vllm-0.32.0-llama-preemptions/loaded.prom", '{"version": "0.32.0"}'),
    "sglang": ("sglang-0.5.23-llama-retractions/loaded.prom", '{"version": "0.5.23"}'),
}
PAGES = {name: (RECORDINGS / page).read_text() for name, (page, _) in ENGINES.items()}
FACTS = {name: read_documents([parse_document(said)], name) for name, (_, said) in ENGINES.items()}

NUMBERS = st.sampled_from(
    [0, 1, -1, 2**31, 2**63, 2**64, 10**18, 10**30, 10**4000, 0.5, -0.0, 1e308, float("nan"), float("inf")]
) | st.integers(-(10**6), 10**6)
VALUES = st.recursive(
    NUMBERS
    | st.none()
    | st.booleans()
    | st.text(max_size=8)
    | st.sampled_from(["../..", "\0", "x" * 10_000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)

fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def told(content: bytes, folder: Path, **said: Any) -> TargetState:
    """Both engines' figures with this file as the model's config."""
    (folder / "config.json").write_bytes(content)
    model = load_model(folder, None, allow_hub=False)
    for software, text in PAGES.items():
        settings = TargetSettings(url="http://engine:1", **said)
        state = TargetState(settings, [1, 4096, 131072, 10**9], 1.0)
        reading = state.read(text)
        state.learn(FACTS[software], None)
        state.model = model
        state.accept(reading, 0.0)
        assert state.up
        check(state)
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


def as_file(config: Any) -> bytes:
    # NaN and infinity are written and read as Python's own words for them.
    return json.dumps(config).encode()


@fuzz
@given(
    config=st.sampled_from(CONFIGS),
    changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=4),
    inside=st.booleans(),
    parallel=st.sampled_from([1, 2, 3, 8, 1024]),
)
def test_fields(
    folder: Path, config: dict[str, Any], changes: dict[str, Any], inside: bool, parallel: int
) -> None:
    """Huge and negative numbers, NaN, lists and objects where numbers stood, also in the text part."""
    inner = config.get("text_config")
    if inside and isinstance(inner, dict):
        changed = {**config, "text_config": {**inner, **changes}}
    else:
        changed = {**config, **changes}
    try:
        content = as_file(changed)
    except ValueError:  # 10**4000 is more than json writes
        content = as_file({**config, **dict.fromkeys(changes, 10**300)})
    told(content, folder, tensor_parallel_size=parallel)


@fuzz
@given(data=st.data())
def test_bytes(folder: Path, data: st.DataObject) -> None:
    """A download that was cut, a disk that flips bits."""
    told(data.draw(bytes_changed(data.draw(st.sampled_from(TEXTS)))), folder)


@pytest.mark.parametrize(
    "content",
    [
        b'{"model_type": "llama", "num_hidden_layers": ' + b"9" * 5000 + b"}",
        b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 1_000_000,
        b'{"model_type": NaN}',
        b"",
        b"\xff\xfe{\0}\0",
        b'{"model_type": "llama", "num_hidden_layers": Infinity, "layer_types": []}',
    ],
    ids=["digits", "deep", "deeper", "nan", "empty", "utf-16", "infinite"],
)
def test_files_made_to_break(folder: Path, content: bytes) -> None:
    """Each is refused with a reason; the engine's own figures stay."""
    state = told(content, folder)
    assert not known(state.model.shape)
    assert state.model.shape.reason in (Reason.BAD_MODEL_CONFIG, Reason.UNSUPPORTED_ATTENTION)


def test_more_layers_than_memory(folder: Path) -> None:
    """A billion layers are refused, not listed one by one."""
    config = {**CONFIGS[0], "model_type": "llama", "num_hidden_layers": 10**9, "hidden_size": 64}
    told(as_file({**config, "num_attention_heads": 2, "num_key_value_heads": 2}), folder)
