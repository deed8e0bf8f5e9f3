"""Info endpoints that hang or lie: the page's own figures stay, and nothing is read that should not be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import lookup, watch

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, models, vllm
from .hostile import engine
from .page import ERRORS
from .running import InProcess

SECRET = "s3cret-in-a-file"
# About 50 MB, over the cap of an info endpoint; and one that is small but nested 100,000 deep.
HUGE = h.endless(b'{"id": "x"},' * 4096, b'{"data": [', times=1024, Content_Type="application/json")
DEEP = h.body('{"data": ' + "[" * 100_000 + "]" * 100_000 + "}")


def _models_text(text: str) -> h.Answer:
    return h.body(text, Content_Type="application/json")


# What /v1/models says; each must leave the model unknown.
NO_MODEL: dict[str, h.Answer] = {
    "hang": h.nothing,
    "hang-up": h.hang_up,
    "huge": HUGE,
    "deep": DEEP,
    "garbage": h.body(bytes(range(256)) * 16),
    "half": _models_text('{"object": "list", "data": [{"id": "ll'),
    "digits": _models_text('{"data": [{"max_model_len": ' + "9" * 100_000 + "}]}"),
    "array": h.as_json([1, 2, 3]),
    "wrong-types": h.as_json({"data": [{"id": 5, "root": {"a": []}, "max_model_len": "many"}, 7, None]}),
    "empty-list": h.as_json({"data": []}),
    "error-page": h.body("<html>no</html>", "500 Internal Server Error"),
    "up-and-away": models("../../etc"),
    "environ": models("/proc/self/environ"),
    "environ-itself": models("/proc/self/environ/config.json"),
    "megabyte": models("/models/" + "x" * 2**20),
    "newlines": models("/models/llama\nlevel=error msg=forged"),
    "null-byte": models("/models/\0llama"),
    "surrogate": models("/models/\udc80llama"),
    "blank": models("   "),
    "number": models(17),
}
# Engines whose other endpoints say where the model is.
WITH_MODEL = ("version-garbage", "version-forged", "healthy")


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose config.json is JSON, but nobody's model, and holds a secret."""
    folder = tmp_path_factory.mktemp("somebody-elses")
    (folder / "config.json").write_text(json.dumps({"model_type": "app", "token": SECRET}))
    (folder / "credentials").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def exporter(secret: Path) -> Iterator[InProcess]:
    engines = {name: vllm(v1_models=answer) for name, answer in NO_MODEL.items()}
    engines["other-config"] = vllm(v1_models=models(str(secret)))
    engines["other-file"] = vllm(v1_models=models(str(secret / "credentials")))
    engines["version-garbage"] = vllm(version=DEEP)
    engines["version-forged"] = vllm(version=h.as_json({"version": '0.32.0"} 1\nkvcache_engine_up 0'}))
    engines["healthy"] = vllm()
    with pytest.MonkeyPatch.context() as patch:
        # Several endpoints hang one after the other; three seconds for each would be the whole test.
        patch.setattr(lookup, "INFO_TIMEOUT_S", 0.7)
        # On a busy machine a good endpoint may miss that, too, and is asked again.
        patch.setattr(watch, "RETRY_INFO_S", 1.0)
        with (
            h.HostileServer(engines) as server,
            InProcess({name: server.url(name) for name in engines}, timeout=3.0) as running,
        ):
            running.wait(lambda p: p.values("kvcache_engine_up") == [1.0] * len(engines), "all up")
            running.wait(
                lambda p: all(p.all("kvcache_bytes_per_token", target=name) for name in WITH_MODEL),
                "the models",
            )
            yield running


@pytest.mark.parametrize("name", [*NO_MODEL, "other-config", "other-file"])
def test_model_stays_unknown_and_the_page_counts(exporter: InProcess, name: str) -> None:
    """Bytes need a model and are absent, with the reason; what the page says is there."""
    reason = "model_config"
    if name == "other-config":  # a JSON object, so a config, but of no attention that anybody knows
        reason = "unsupported_attention"
    seen = exporter.wait(lambda p: p.why_missing(name).get("kvcache_bytes_per_token") == reason, "the reason")
    assert seen.reasons(ERRORS, name) == {}
    assert seen.value("kvcache_usage_ratio", target=name) == 1.0
    assert seen.value("kvcache_capacity_blocks", target=name) == 300
    assert seen.value("kvcache_exporter_model_config_loaded", target=name) == 0
    assert seen.all("kvcache_bytes_per_token", target=name) == []


def test_a_bad_version_costs_no_model(exporter: InProcess) -> None:
    """The endpoints are independent: without a version, the model is still known."""
    seen = exporter.scrape()
    for name in ("version-garbage", "version-forged"):
        assert seen.value("kvcache_bytes_per_token", target=name) == LLAMA_BYTES_PER_TOKEN
        # A forged version would need its control character to leave its label.
        assert seen.all("kvcache_engine_info", target=name, version="0.32.0") == []
        assert seen.value("kvcache_engine_up", target=name) == 1


def test_nothing_of_other_files_gets_out(exporter: InProcess, secret: Path) -> None:
    """An engine can point the exporter at any file; it must not become a way to read one."""
    for path in ("/metrics", "/explain", "/explain?output=json", "/"):
        text = exporter.get(path).text
        assert SECRET not in text
        assert "\nlevel=error msg=forged" not in text
    assert (secret / "credentials").read_text() == SECRET  # the bait was really there


def test_healthy_engine_beside_them_keeps_everything(exporter: InProcess) -> None:
    """Whatever the others' endpoints do, this one keeps its series and is polled on."""
    before = exporter.scrape().series("healthy")
    after = exporter.wait_for_polls("healthy", 2)
    assert after.series("healthy") == before
    assert after.value("kvcache_bytes_per_token", target="healthy") == LLAMA_BYTES_PER_TOKEN
    assert exporter.escaped == []


@pytest.mark.parametrize("endpoint", ["version", "v1_models"])
def test_half_a_character_breaks_no_scrape(endpoint: str) -> None:
    """JSON can spell a lone surrogate, which no UTF-8 page can carry: /metrics must stay whole."""
    half = "0.32.0\ud800"
    said = h.as_json({"version": half}) if endpoint == "version" else models("/m", id=half)
    # Without a model_name on the page, the endpoint's name for the model becomes the label.
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{engine="0"} 1\n'
    with (
        h.HostileServer({"engine": engine(h.body(text), **{endpoint: said})}) as server,
        InProcess({"engine": server.url("engine")}) as exporter,
    ):
        exporter.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine")
        assert exporter.wait_for_polls("engine", 1).values("kvcache_usage_ratio") == [0.5]
