"""What the exporter serves, judged by promtool, prometheus_client's parsers and a real Prometheus."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_classic

from exporter.catalogue import CATALOGUE

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, RECORDINGS, page, renamed, vllm
from .running import InProcess
from .waiting import wait_for

CLASSIC = "text/plain;version=0.0.4"
# What Prometheus 2.42 sends.
SCRAPER = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMTOOL, PROMETHEUS = shutil.which("promtool"), shutil.which("prometheus")
ODD = 'odd \\"name\\" {x}\\\\n'  # as the format spells it, and PromQL as well
SGLANG = RECORDINGS / "sglang-0.5.23-llama-retractions"


def _sglang() -> h.Answer:
    documents = {
        name: h.body((SGLANG / f"{name}.json").read_text()) for name in ("server_info", "model_info")
    }
    by_path = {"/metrics": h.body(page(folder=SGLANG)), **{f"/{k}": v for k, v in documents.items()}}
    return lambda c: by_path.get(c.path, h.body("", "404 Not Found"))(c)


@pytest.fixture(scope="module")
def exporter() -> Iterator[InProcess]:
    """Engines of both kinds: one has an odd name, one has two ranks, one is down."""
    engines = {
        "healthy": vllm(),
        "odd": vllm(renamed(page(), ODD.replace("\\", r"\\"))),
        "ranks": vllm((RECORDINGS / "cases/T07_dp2.prom").read_text()),
        "sglang": _sglang(),
        "down": h.hang_up,
    }
    with (
        h.HostileServer(engines) as server,
        InProcess({name: server.url(name) for name in engines}) as running,
    ):
        running.wait(lambda p: sum(p.values("kvcache_engine_up")) == len(engines) - 1, "the engines read")
        yield running


def test_content_types(exporter: InProcess) -> None:
    """Each format under its own name: a scraper parses by it."""
    classic, modern = exporter.get("/metrics", Accept=CLASSIC), exporter.get("/metrics", Accept=SCRAPER)
    assert classic.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    assert "# EOF" not in classic.text
    # Without a word about formats it is the classic one.
    assert exporter.get("/metrics", Accept="*/*").headers["content-type"].startswith("text/plain")


def test_both_formats_say_the_same(exporter: InProcess) -> None:
    """Both parse, and hold the same series."""
    classic = list(read_classic(exporter.get("/metrics", Accept=CLASSIC).text))
    modern = list(read_openmetrics(exporter.get("/metrics", Accept=SCRAPER).text))  # type: ignore[no-untyped-call]

    def series(families: list[Metric]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        return {(s.name, frozenset(s.labels.items())) for family in families for s in family.samples}

    assert series(classic) == series(modern)
    assert all(family.documentation and family.type != "unknown" for family in classic)


def test_no_series_twice_and_label_sets_consistent(exporter: InProcess) -> None:
    """A series twice fails the whole scrape; labels that come and go break joins and sums.

    Only a label that would be empty may be left out: Prometheus treats it as such.
    """
    known = {metric.name: set(metric.labels) for metric in CATALOGUE}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    names: dict[str, set[frozenset[str]]] = defaultdict(set)
    for sample in exporter.scrape().samples:
        series = sample.name, frozenset(sample.labels.items())
        assert series not in seen, series
        seen.add(series)
        assert all(sample.labels.values()), series
        if sample.name in known:
            assert set(sample.labels) <= known[sample.name], series
        names[sample.name].add(frozenset(sample.labels))
    # The figures of one rank carry the rank's three labels, whatever else.
    for name in ("kvcache_usage_ratio", "kvcache_capacity_blocks", "kvcache_running_sequences"):
        assert all({"target", "model_name"} <= labels for labels in names[name]), name


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_has_no_complaint(exporter: InProcess) -> None:
    """Names, units, types and help texts as Prometheus' own linter wants them."""
    assert PROMTOOL is not None
    text = exporter.get("/metrics", Accept=CLASSIC).content
    said = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    complaints = (said.stdout + said.stderr).decode().splitlines()
    assert [line for line in complaints if line] == []


@pytest.fixture(scope="module")
def prometheus(exporter: InProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the exporter."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    target = exporter.url.removeprefix("http://")
    (folder / "prometheus.yml").write_text(
        # The first scrape comes at a random time within the interval.
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: kvcache, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = [
        PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://{address}"

        def scraped() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with suppress(httpx.TransportError):
                return bool(_query(url, "up"))
            return False

        wait_for(scraped, "a first scrape by Prometheus")
        yield url
    finally:
        process.terminate()
        process.wait(20)
    # Prometheus warns about samples that it rejects (duplicates, out of order).
    assert "rejected" not in (folder / "log").read_text().lower()


def _query(url: str, promql: str) -> list[tuple[dict[str, str], float]]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": promql}, timeout=20, trust_env=False)
    if answer.status_code == 503:  # not ready yet
        return []
    return [
        (row["metric"], float(row["value"][1])) for row in answer.raise_for_status().json()["data"]["result"]
    ]


@pytest.mark.parametrize(
    ("promql", "expected"),
    [
        ("up", 1.0),
        ('kvcache_engine_up{target="healthy"}', 1.0),
        ('kvcache_engine_up{target="down"}', 0.0),
        ('kvcache_bytes_per_token{target="healthy"}', LLAMA_BYTES_PER_TOKEN),
        # 299 usable blocks of 300, all in use (the page says a ratio of 1), each of 32 tokens.
        ('kvcache_used_bytes{target="healthy"}', 299 * 32 * LLAMA_BYTES_PER_TOKEN),
        ('kvcache_used_blocks{target="healthy"} / (kvcache_capacity_blocks - 1)', 1.0),
        ('sum(kvcache_requests_total{target="healthy"})', 71.0),
        # A quantile over our own polls, all of them at a ratio of 1: in the bucket above 0.99.
        ('histogram_quantile(0.95, kvcache_sampled_usage_ratio_bucket{target="healthy"}) > bool 0.99', 1.0),
        # A name with quotes, braces and a backslash arrives as the engine meant it.
        (f'kvcache_running_sequences{{model_name="{ODD}"}}', 9.0),
        ("scrape_samples_post_metric_relabeling - scrape_samples_scraped", 0.0),
    ],
)
def test_prometheus_answers(prometheus: str, promql: str, expected: float) -> None:
    """A scrape that Prometheus took, and arithmetic in its own language on it."""
    assert [value for _, value in _query(prometheus, promql)] == [expected]
