"""Every query of the runbooks, asked of a real Prometheus that watched two engines run out of cache."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
import yaml

from alerts.rules import HERE, groups, thresholds
from exporter.demo import load
from exporter.recording.replay import write_model
from tests.integration.running import Program

from .promtool import needs
from .recorded import RECORDING, Tape, recorded_engine
from .stand import Prometheus

SGLANG: Final = load("sglang")
LOG: Final = (
    Path(__file__).parents[1] / "recordings" / "sglang-0.5.23-llama-retractions" / "request-log.jsonl"
)
# Where the tapes stop, in seconds: idle, filling, preempting, drained.
STOPS: Final = (0.0, 5.5, 12.5, 20.5, 31.0)

# Queries that rightly show nothing on this data. Whoever adds one says why.
SILENT: Final = {
    "up == 0 and on (job, instance) kvcache:exporter:seen": "the exporter is up",
    "up == 0 and on (cluster, job) min_over_time(kvcache:exporter:alone[1d]) == 1": "as above",
    "increase(kvcache_exporter_errors_total[5m]) > 0": "no poll fails",
    "kvcache_exporter_input_contradiction": "all sources agree",
    "kvcache_exporter_input_assumed": "everything is told",
    "kvcache_decode_floor_seconds": "no checkpoint was recorded, so nobody knows the weights",
    "kvcache_itl_floor_ratio": "as above",
    "kvcache:time_to_full:seconds": "usage falls at the end of the tape",
    "kvcache:itl_to_reference_tier:ratio": "long contexts of a tiny model on a CPU are no slower",
}


def queries() -> list[tuple[str, str]]:
    """(alert, query) of every line of every block."""
    return [
        (page.stem, line)
        for page in sorted((HERE / "runbooks").glob("*.md"))
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
        for line in block.splitlines()
        if line and not line.startswith("#")
    ]


def _rules() -> list[object]:
    """All of them, with a baseline of what little there is: elsewhere it takes hours to show."""
    numbers = copy.deepcopy(thresholds())
    numbers["evaluation"] = {"interval": "1s", "latency_interval": "1s", "slow_interval": "1s"}
    numbers["tiers"] = {"short": "256|512", "reference": "512"}
    numbers["itl_regression"] |= {
        "min_requests": 1,
        "baseline_window": "10m",
        "baseline_offset": "1s",
        "baseline_min_samples": 2,
    }
    numbers["ttft"] = {"baseline_min_samples": 2}
    numbers["exporter_down"] |= {"settled": "1s"}
    return groups(numbers)


def _wait_seen(exporter: Program, watching: Prometheus) -> None:
    """Return when a poll that began since has been scraped, and evaluated."""
    polled = exporter.wait_for_polls("vllm", 2).value("kvcache_exporter_fetches_total", target="vllm")
    seen = f'kvcache_exporter_fetches_total{{target="vllm"}} offset 2s >= {polled}'
    watching.wait_for(lambda: bool(watching.query(seen)), "the tapes where they stop")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has seen both tapes stop by stop, and SGLang's request log grow."""
    needs("prometheus")
    folder = tmp_path_factory.mktemp("runbooks")
    log = folder / "log" / "sglang-request-metrics-20260101_01.log"
    log.parent.mkdir()
    log.touch()
    lines = LOG.read_text().splitlines(keepends=True)
    with ExitStack() as stack:
        tapes = [Tape(), Tape()]
        engines = zip(tapes, (RECORDING, SGLANG), strict=True)
        vllm, sglang = (stack.enter_context(recorded_engine(tape, of)) for tape, of in engines)
        settings = folder / "settings.yaml"
        settings.write_text(
            yaml.safe_dump(
                {
                    "target": [
                        {
                            "name": "vllm",
                            "url": vllm,
                            "model_config_path": str(write_model(RECORDING, folder / "vllm-model")),
                        },
                        {
                            "name": "sglang",
                            "url": sglang,
                            "model_config_path": str(write_model(SGLANG, folder / "sglang-model")),
                            "request_log": str(log.parent),
                            "prefix_hit_objectives": {"shared": 0.5},
                        },
                    ],
                    "context": [256, 512, 1024],
                    "price_per_hour": 2.0,
                    "gpu_bandwidth": 3.35e12,
                }
            )
        )
        exporter = stack.enter_context(
            Program(folder / "exporter.log", "--config-file", str(settings), unstretched=True)
        )
        watching = stack.enter_context(Prometheus(_rules(), folder, [exporter.listen]))
        watching.wait_ready()
        for n, stop in enumerate(STOPS):
            for tape in tapes:
                tape.wind(stop)
            with log.open("a") as file:
                file.writelines(lines[n :: len(STOPS)])
            _wait_seen(exporter, watching)
        yield watching


@pytest.mark.parametrize(("alert", "query"), queries(), ids=[f"{a}-{q}" for a, q in queries()])
def test_query_answers(alert: str, query: str, prometheus: Prometheus) -> None:
    """At night nobody repairs a query: it runs, and it shows something where there is something to show."""
    if query in SILENT:
        prometheus.query(query)  # raises where it is refused
    else:
        prometheus.wait_for(lambda: bool(prometheus.query(query)), f"{alert}: {query}")


def test_silent_queries_are_in_a_runbook() -> None:
    """A reason for a query that is gone excuses nothing."""
    assert set(SILENT) <= {query for _, query in queries()}
