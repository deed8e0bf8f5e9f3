"""A real SGLang sends traces, writes its log and answers probes: every request of its client counts once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from .load import prompts
from .sglang_engine import SglangEngine
from .sglang_truth import LLAMA
from .sidecar import Sidecar
from .test_vllm_traces import REQUESTS, TIERS, by_tier, received
from .waiting import wait_for

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]


class TracedSglang(SglangEngine):
    """SGLang with the flags that the README names; at the default level, a span for every decode step too."""

    def tracing_to(self, url: str) -> None:
        self._command += ["--enable-trace", "--otlp-traces-endpoint", f"{url}/v1/traces"]
        self._environment |= {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_SAMPLER": "always_on",
        }


async def all_requests(engine: SglangEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, timeout=120, trust_env=False) as client:

        async def one(prompt: list[int], output: int) -> None:
            body = {
                "model": engine.model_name,
                "prompt": prompt,
                "max_tokens": output,
                "ignore_eos": True,
                "temperature": 0,
            }
            answer = await client.post("/v1/completions", json=body)
            assert answer.raise_for_status().json()["usage"]["completion_tokens"] == output

        sent = prompts(800, [prompt for prompt, _ in REQUESTS])
        await asyncio.gather(
            *(one(prompt, output) for prompt, (_, output) in zip(sent, REQUESTS, strict=True))
        )


def test_traces_and_log_are_the_clients_requests(
    sglang_python: Path, model_directories: Path, tmp_path: Path
) -> None:
    """The log is quicker, the traces are better: nothing counts twice, decode steps count as nothing."""
    log = tmp_path / "request-log"
    log.mkdir()
    engine = TracedSglang(
        sglang_python,
        model_directories / LLAMA.directory,
        tmp_path / "engine.log",
        [*LLAMA.flags, "--export-metrics-to-file", "--export-metrics-to-file-dir", str(log)],
    )
    flags = ["--context", *map(str, TIERS), "--request-log", str(log)]
    sidecar = Sidecar(engine.url, tmp_path / "sidecar.log", flags)
    engine.tracing_to(sidecar.url)
    with sidecar:
        sidecar.wait_listening()
        with engine:
            engine.wait_ready()
            for rounds in (1, 2):
                asyncio.run(all_requests(engine))
                for source in ("log", "trace"):
                    wait_for(
                        lambda source=source, rounds=rounds: (  # type: ignore[misc]
                            received(sidecar, source) >= rounds * len(REQUESTS)
                        ),
                        60,
                        f"the {source} records of round {rounds}",
                    )
            page = sidecar.scrape()

    assert by_tier(page, "kvcache_context_requests_total") == dict.fromkeys(TIERS, 2)
    assert by_tier(page, "kvcache_context_prompt_tokens_total") == {p + o: 2 * p for p, o in REQUESTS}
    assert page.total("kvcache_exporter_spans_ignored_total") > sum(output for _, output in REQUESTS)
    for source in ("log", "trace"):
        assert page.value("kvcache_exporter_records_received_total", source=source) == 2 * len(REQUESTS)
