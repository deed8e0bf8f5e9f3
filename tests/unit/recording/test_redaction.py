"""What a recording may hold: canaries of every kind are planted, and the file is searched for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.demo import NAMES, load
from exporter.engines import detect
from exporter.engines.info import read_documents
from exporter.facts import Facts
from exporter.kvmath.model import read_model
from exporter.recording.redaction import CONFIG_LEFT_OUT, CONFIG_WORDS, Redactor

TESTS = Path(__file__).parents[2]
CONFIGS = sorted((TESTS / "data" / "kv" / "configs").glob("*.json"))
PAGES = sorted((TESTS / "recordings").rglob("*.prom"))

PAGE = """\
# HELP vllm:kv_cache_usage_perc canary-prose by alice
# TYPE vllm:kv_cache_usage_perc gauge
# canary-comment
vllm:kv_cache_usage_perc{engine="0",model_name="/home/canary-alice/models/llama"} 0.5
vllm:num_requests_running{engine="10.1.2.3",model_name="/home/canary-alice/models/llama"} 1.0
vllm:request_success_total{customer="canary-customer",account="4711471147",name="s3://canary-bucket/x"} 2
vllm:other{host="canary-host.internal",node="10.1.2.3",finished_reason="/canary/path"} 1
vllm:cache_config_info{block_size="16",kv_transfer="canary-host.internal:99",num_gpu_blocks="10.1.2.3"} 1
vllm:lora{running_lora_adapters="good,/home/canary-alice/lora/mine"} 1
vllm:num_requests_running{engine="canary01.corp.internal",model_name="llama"} 1.0
http_requests_total{handler="/canary/../etc",method="GET"} 3
http_requests_total{handler="/v1/chat/users/alice",method="GET"} 3
http_requests_total{handler="/alice",method="GET"} 3
http_requests_total{handler="/v1/chat/completions",method="GET"} 4
canary text that is no sample
vllm:bad{prompt="canary prompt} 1
"""
DOCUMENT = {
    "model_path": "/home/canary-alice/models/llama",
    "served_model_name": "canary spaced name",
    "tp_size": 1,
    "kv_cache_dtype": "/canary/dtype",
    "api_key": "canary-key",
    "host": "canary-host.internal",
    "launch_command": "--api-key canary-key",
    "internal_states": [{"api_key": "canary-key"}],
    "version": "0.5.23",
    "vllm_env": {"HF_TOKEN": "canary-token"},
}
CONFIG = {
    "model_type": "llama",
    "_name_or_path": "/home/canary-alice/x",
    "label2id": {"canary-label": 1},
    "hidden_size": 256,
    "dtype": "canary / spaced",
    "auto_map": {"AutoModel": "canary.Model"},
    "canary key": 1,
    "time_step_limit": [0.0, float("inf")],
}


def test_canaries_stay_out() -> None:
    """Path, user, host, address, token, prose, prompt, customer: nothing of it comes through."""
    redactor = Redactor()
    said = Facts(model="/home/canary-alice/x", kv_cache_dtype="canary / x", tensor_parallel_size=2)
    kept = [
        redactor.page(PAGE),
        json.dumps(redactor.document(DOCUMENT)),
        json.dumps(redactor.config(CONFIG), allow_nan=False),
        repr(redactor.command_line(said)),
    ]
    for canary in ("canary", "alice", "10.1.2.3", "4711", "/home", "prose", "api_key", "internal"):
        assert not [text for text in kept if canary in text], canary
    assert "tensor_parallel_size=2" in kept[3]
    # What figures need is still there, under the name that the path ended with.
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="llama"} 0.5' in kept[0]
    assert 'block_size="16"' in kept[0]
    assert 'handler="/v1/chat/completions"' in kept[0]
    assert json.loads(kept[1])["model_path"] == "/nonexistent/llama"
    assert redactor.counts["help texts"] == 1
    assert redactor.counts["lines"] == 3


def test_names_are_replaced_alike_everywhere() -> None:
    """A model must have one name on the page and in /v1/models, or nothing would join."""
    redactor = Redactor(names=True)
    page = redactor.page(
        'vllm:x{model_name="secret-llama",route="vip"} 1\nvllm:x{model_name="b",route=""} 1\n'
    )
    assert page == 'vllm:x{model_name="model-1",route="route-1"} 1\nvllm:x{model_name="model-2",route=""} 1\n'
    models = {"data": [{"id": "secret-llama", "root": "/m/secret-llama", "owned_by": "vllm", "parent": None}]}
    entry = {"id": "model-1", "root": "/nonexistent/model-1", "owned_by": "vllm", "parent": None}
    assert redactor.document(models) == {"data": [entry]}


def test_different_paths_stay_different() -> None:
    """A draft that lies under the same last name is not the model itself: readers compare the two."""
    said = {"model_path": "/a/llama", "speculative_draft_model_path": "/drafts/llama", "tp_size": 1}
    assert Redactor().document(said) == {
        "model_path": "/nonexistent/llama",
        "speculative_draft_model_path": "/nonexistent/llama-2",
        "tp_size": 1,
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_pages_read_the_same_afterwards(path: Path) -> None:
    """Redaction must not cost a figure: every recorded page and every case."""
    text = path.read_text()
    before, after = detect.read(text), detect.read(Redactor().page(text))
    assert detect.samples(after) == detect.samples(before)
    assert after.dropped == before.dropped


def test_configs_read_the_same_afterwards() -> None:
    """144 published models: the shape does not hang on a word that is left out."""
    assert len(CONFIGS) > 100
    for path in CONFIGS:
        config = json.loads(path.read_text())
        assert read_model(Redactor().config(config)) == read_model(config), path.name


class Asked(dict[str, Any]):
    """Notes which of its keys were asked for."""

    keys_asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return super().__getitem__(key)


def noting(value: Any, asked: set[str]) -> Any:
    if isinstance(value, dict):
        one = Asked({name: noting(inner, asked) for name, inner in value.items()})
        one.keys_asked = asked
        return one
    return [noting(inner, asked) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", NAMES)
def test_every_field_that_a_reader_asks_for_is_public(name: str) -> None:
    """A field that a reader learns to use must be recorded as well, or a replay would show less."""
    for path, document in load(name).endpoints.items():
        asked: set[str] = set()
        before = read_documents([noting(document, asked)], name)
        probe = dict.fromkeys(asked, 1)
        if path == "/server_info" and name == "sglang":
            kept = Redactor().document({**probe, **document})
            assert isinstance(kept, dict)
            assert asked - {"vllm_config", "data"} <= set(kept)
        assert read_documents([Redactor().document(document)], name) == before


def test_config_words_that_readers_ask_for_are_public() -> None:
    """The same for config.json: what kvmath reads as a word is on the list."""
    words: set[str] = set()
    asked: set[str] = set()

    def walk(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, name)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, key)
        elif isinstance(value, str):
            words.add(key)

    for path in CONFIGS:
        config = json.loads(path.read_text())
        walk(config)
        read_model(noting(config, asked))
    assert words & asked - CONFIG_LEFT_OUT <= CONFIG_WORDS


@pytest.mark.parametrize("name", NAMES)
def test_what_was_redacted_once_stays_as_it_is(name: str) -> None:
    """The demo's recordings are such as `record` would write them today."""
    run = load(name)
    redactor = Redactor()
    assert run.header.config is not None
    assert redactor.config(run.header.config) == run.header.config
    assert {path: redactor.document(said) for path, said in run.endpoints.items()} == run.endpoints
    assert redactor.page(run.frames[3].page_text) == run.frames[3].page_text
    assert not redactor.counts
