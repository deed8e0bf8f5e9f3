"""``check`` against recorded engines on real sockets: findings, exact advice, exit code, stable JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.check import examine, text
from exporter.cli import main
from exporter.engines import switches
from exporter.engines.detect import parse_version

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, RECORDINGS, models, page, vllm
from .running import run_program

ROOT = Path(__file__).parents[2]
SGLANG = RECORDINGS / "sglang-0.5.23-llama-retractions"
# The recorded SGLang's model: 2 KV heads x 32 x 4 layers, bf16, so 1,024 bytes per token.
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 128,
    "head_dim": 32,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "vocab_size": 1000,
    "intermediate_size": 256,
}
ITL = "kvcache_itl_seconds"


def sglang(metrics: h.Answer | None = None, **changed: Any) -> h.Answer:
    """The recorded SGLang 0.5.23, its /server_info changed."""
    info = {**json.loads((SGLANG / "server_info.json").read_text()), **changed}
    by_path = {
        "/metrics": metrics or h.body((SGLANG / "loaded.prom").read_text()),
        "/server_info": h.as_json(info),
        "/model_info": h.body((SGLANG / "model_info.json").read_text()),
        "/v1/models": h.body((SGLANG / "v1_models.json").read_text()),
    }
    missing = h.body("", "404 Not Found")
    return lambda c: by_path.get(c.path, missing)(c)


@pytest.fixture
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer() as running:
        yield running


class Checked:
    """One run of the command: its exit code and its JSON."""

    def __init__(self, code: int, told: dict[str, Any]) -> None:
        self.code, self.told = code, told
        self.signals = {s["signal"]: s for s in told["signals"]}
        self.flags = [a["flag"] for a in told["advice"] if a["flag"]]

    def advice(self, start: str) -> dict[str, Any]:
        (found,) = [a for a in self.told["advice"] if (a["flag"] or a["environment"] or "").startswith(start)]
        return dict(found)

    def advises(self, word: str) -> bool:
        return any(word in f"{a['environment']} {a['flag']}" for a in self.told["advice"])


@pytest.fixture
def check(server: h.HostileServer, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(engine: h.Answer, *words: str) -> Checked:
        server.engines["engine"] = engine
        code = main(["check", server.url("engine"), "--output", "json", "--hub", "false", *words])
        return Checked(code, json.loads(capsys.readouterr().out))

    return run


def test_vllm(check: Any) -> None:
    """A healthy engine: found out, config read, bytes agree, and one advice that is worth a restart."""
    got = check(vllm())
    assert got.code == 0
    assert (got.told["reachable"], got.told["failure"]) == (True, None)
    assert (got.told["engine"], got.told["version"], got.told["model_names"]) == ("vllm", "0.32.0", ["llama"])
    assert got.told["model_config"]["source"] == "path"
    assert got.told["arithmetic"] == {"ratio": 1.0, "agrees": True}
    assert got.signals["kvcache_bytes_per_token"] == {
        "signal": "kvcache_bytes_per_token",
        "available": True,
        "reason": None,
        "detail": None,
    }
    assert (got.signals[ITL]["available"], got.signals[ITL]["reason"]) == (False, "needs_records")
    traces = got.advice("--otlp-traces-endpoint")
    assert (traces["weight"], traces["where"]) == ("better", "engine")
    assert ITL in traces["unlocks"]
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf" in traces["environment"]
    # 0.32.0 has all of these; nobody told this engine's parallelism.
    for word in ("--custom-histogram-buckets", "--kv-cache-metrics", "VLLM_SERVER_DEV_MODE=1"):
        assert got.advises(word), word
    assert got.told["assumed"] == ["pipeline_parallel_size", "tensor_parallel_size"]
    assert not got.advises("--enable-")  # nothing of the other engine


def test_strict_counts_advice(check: Any) -> None:
    """In CI one may want the traces, too; what is only optional never fails."""
    assert check(vllm(), "--strict").code == 1
    on = sglang(enable_trace=True)
    with_config = ("--model-config", str(RECORDINGS / "none"))
    assert check(on, "--strict", *with_config).code == 1  # config.json


@pytest.mark.parametrize(
    ("version", "has", "lacks"),
    [
        # tests/data/engines/vllm-metrics.tsv: kv_block_* from 0.13.0; V1 has no spans in 0.10.2.
        ("0.10.2", (), ("--otlp-traces", "--kv-cache-metrics", "--custom-histogram", "DEV_MODE")),
        ("0.11.2", ("--otlp-traces",), ("--kv-cache-metrics", "--custom-histogram", "DEV_MODE")),
        ("0.13.0", ("--otlp-traces", "--kv-cache-metrics"), ("--custom-histogram", "DEV_MODE")),
        ("0.33.0", ("--otlp-traces", "--kv-cache-metrics", "--custom-histogram", "DEV_MODE"), ()),
        ("0.1.dev1+gabc", (), ("--otlp-traces", "--kv-cache-metrics", "--custom-histogram", "DEV_MODE")),
    ],
)
def test_no_flag_that_the_release_lacks(
    check: Any, version: str, has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    """An engine that is started with an unknown flag does not start."""
    got = check(vllm(version=h.as_json({"version": version})))
    assert [word for word in has if not got.advises(word)] == []
    assert [word for word in lacks if got.advises(word)] == []


def test_sglang_with_its_config(check: Any, tmp_path: Path) -> None:
    """Its /server_info tells which flags it was started with: what is on is not advised."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    got = check(sglang(), "--model-config", str(tmp_path))
    assert (got.code, got.told["engine"], got.told["version"]) == (0, "sglang", "0.5.23")
    assert got.told["arithmetic"]["agrees"] is True
    assert got.signals["kvcache_bytes_per_token"]["available"]
    # The recorded one had --export-metrics-to-file and the route label, and no traces.
    assert not got.advises("--export-metrics-to-file")
    assert not got.advises("--tokenizer-metrics")
    off: dict[str, Any] = {"export_metrics_to_file": False, "tokenizer_metrics_allowed_custom_labels": None}
    bare = check(sglang(**off), "--model-config", str(tmp_path))
    assert bare.advice("--enable-trace")["environment"].endswith("SGLANG_TRACE_LEVEL=1")
    assert bare.advice("--export-metrics-to-file")["weight"] == "optional"
    assert bare.advises("--tokenizer-metrics-allowed-custom-labels route")
    old = check(sglang(version="0.5.5", **off), "--model-config", str(tmp_path))
    assert not old.advises("--enable-trace")
    assert not old.advises("--export-metrics-to-file")
    assert old.advises("--tokenizer-metrics-allowed-custom-labels")


def test_explain_beside_it_stays_json(server: h.HostileServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags that an engine was started with are no input of the arithmetic, and no JSON."""
    server.engines["engine"] = sglang()
    main(["explain", "--target", server.url("engine"), "--output", "json", "--hub", "false"])
    (engine,) = json.loads(capsys.readouterr().out)["engines"]
    assert "options" not in {i["name"] for i in engine["inputs"]}


def test_wrong_config_is_a_problem(check: Any, tmp_path: Path) -> None:
    """Twice the layers are twice the bytes that SGLang says it took: the figures can't be trusted."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 8}))
    got = check(sglang(), "--model-config", str(tmp_path))
    assert got.code == 1
    assert got.told["arithmetic"]["agrees"] is False
    assert got.told["arithmetic"]["ratio"] == pytest.approx(2, rel=0.01)
    assert got.told["advice"][0]["weight"] == "problem"


def test_sglang_without_metrics(check: Any) -> None:
    """The commonest mistake: the flag is said, though there is no page to tell the engine from."""
    got = check(sglang(h.body("", "404 Not Found")))
    assert got.code == 1
    assert (got.told["reachable"], got.told["failure"], got.told["engine"]) == (True, "http_404", "sglang")
    assert got.told["advice"][0]["flag"] == "--enable-metrics"


def test_vllm_without_statistics(check: Any) -> None:
    """--disable-log-stats leaves a page of the process alone."""
    got = check(vllm("process_cpu_seconds_total 3\n"))
    assert (got.code, got.told["failure"], got.told["engine"]) == (1, "no_engine_families", "vllm")
    assert "--disable-log-stats" in got.told["advice"][0]["why"]


def test_model_behind_a_key(check: Any, tmp_path: Path) -> None:
    """vLLM's --api-key leaves the page open: without the token no model, and the advice is the token."""
    locked = h.body("", "401 Unauthorized")
    got = check(vllm(v1_models=locked))
    assert got.code == 0
    assert got.signals["kvcache_bytes_per_token"]["reason"] == "model_config"
    assert "kvcache_bytes_per_token" in got.advice("--bearer-token-file")["unlocks"]

    def guarded(c: h.Connection) -> None:
        (models(str(RECORDINGS / "vllm-0.32.0-llama-preemptions")) if c.path else locked)(c)

    (tmp_path / "token").write_text("key")
    opened = check(vllm(v1_models=guarded), "--bearer-token-file", str(tmp_path / "token"))
    assert opened.signals["kvcache_bytes_per_token"]["available"]
    assert not opened.advises("--bearer-token-file")


def test_old_engine_on_the_command_line(check: Any) -> None:
    """Overrides as `explain` takes them: then nothing is assumed."""
    got = check(vllm(), "--tensor-parallel-size", "1", "--pipeline-parallel-size", "1")
    assert got.told["assumed"] == []
    assert not got.advises("--tensor-parallel-size")


def test_slow_page_is_heavy(check: Any) -> None:
    """One poll may cost the engine 1 % of its time; with 15 s at most, a page of 0.5 s takes 3 %."""

    def slow(c: h.Connection) -> None:
        c.closing.wait(0.5)
        h.body(page())(c)

    got = check(vllm(metrics=slow))
    scrape = got.told["scrape"]
    assert scrape["bytes"] == len(page().encode())
    assert scrape["poll_interval_seconds"] == 15
    assert scrape["heavy"] is True
    assert got.code == 0
    assert got.advises("--poll-interval")


KEYS = {
    "": "target reachable failure failure_detail engine version model_names ranks signals model_config "
    "arithmetic assumed contradictions scrape advice",
    "signals": "signal available reason detail",
    "model_config": "found source location problem",
    "arithmetic": "ratio agrees",
    "scrape": "bytes seconds poll_interval_seconds share heavy",
    "advice": "weight where flag environment unlocks why",
}


def test_json_keys_are_stable(check: Any) -> None:
    """Programs read this; a key that goes breaks them. Unread or read, they are the same."""
    read, unread = check(vllm()).told, check(h.body("", "503 Service Unavailable")).told
    assert list(read) == list(unread) == KEYS[""].split()
    for name, keys in KEYS.items():
        if name:
            part = read[name][0] if isinstance(read[name], list) else read[name]
            assert list(part) == keys.split(), name


def test_text_is_for_people(server: h.HostileServer) -> None:
    """The program itself: the flag on a line of its own, an exit code for CI, nothing on stderr."""
    server.engines["engine"] = vllm()
    ended = run_program("check", server.url("engine"), "--hub", "false")
    lines = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert lines[0] == f"{server.url('engine')}: vLLM 0.32.0, serving llama"
    assert lines[2].startswith("arithmetic  agrees")
    flag = "--otlp-traces-endpoint http://127.0.0.1:9844/v1/traces"
    assert any(line.startswith("  engine: ") and line.endswith(flag) for line in lines)
    assert all(
        len(line) <= text.WIDTH for line in lines if not line.startswith(("  engine: ", "config.json"))
    )


def test_nobody_there() -> None:
    """Before the engine is up: 1, one reason, no trace."""
    with h.reserve_port() as sock:
        ended = run_program("check", f"http://127.0.0.1:{sock.getsockname()[1]}")
    assert ended.returncode == 1
    assert "NOT READ (connection_refused" in ended.stdout.splitlines()[0]
    assert ended.stderr == ""


@pytest.mark.parametrize(
    "words", [(), ("ftp://engine",), ("http://a:1", "--output", "xml"), ("http://a:1", "b")]
)
def test_bad_usage_is_2(words: tuple[str, ...]) -> None:
    """A typing error in CI is not a finding."""
    ended = run_program("check", *words)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1


def test_facts_said_elsewhere() -> None:
    """The tolerance is the alert's, and a release has a flag no earlier than what the flag shows."""
    thresholds = yaml.safe_load((ROOT / "alerts" / "thresholds.yaml").read_text())
    assert thresholds["arithmetic"]["difference"] == examine.TOLERANCE
    with (ROOT / "tests" / "data" / "engines" / "vllm-metrics.tsv").open() as table:
        first = {row["family"]: row["first"] for row in csv.DictReader(table, delimiter="\t")}
    for name in switches.VLLM_CACHE_METRICS.own_metrics:
        assert parse_version(first[name]) == switches.VLLM_CACHE_METRICS.since


def test_one_token_costs() -> None:
    """The configs of these tests are of the same model as the recordings."""
    layers, heads, size = (LLAMA[k] for k in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
    assert 2 * int(str(heads)) * int(str(size)) * int(str(layers)) * 2 == LLAMA_BYTES_PER_TOKEN
