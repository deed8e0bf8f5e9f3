"""What would help, most important first: a pure function of what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exporter import catalogue as c
from exporter.check.report import Advice, ModelConfig, Scrape, Signal, Weight, Where
from exporter.derive.readout import Readout
from exporter.engines import switches
from exporter.engines.detect import parse_version
from exporter.engines.switches import Switch
from exporter.fetch import Failure
from exporter.kvmath.known import Reason, known

# A missing input that is a flag of ours: reason -> flag and what it says.
INPUT_FLAGS = {
    Reason.TENSOR_PARALLEL_SIZE: "--tensor-parallel-size N",
    Reason.PIPELINE_PARALLEL_SIZE: "--pipeline-parallel-size N",
    Reason.KV_CACHE_DTYPE: "--kv-cache-dtype DTYPE",
    Reason.BLOCK_SIZE: "--block-size N",
    Reason.MAX_MODEL_LEN: "--max-model-len N",
    Reason.MAX_NUM_BATCHED_TOKENS: "--max-num-batched-tokens N",
    Reason.GPU_BANDWIDTH: "--gpu-bandwidth GPU",
}
# Gaps between tokens below this are one bucket; those of a fast engine all are.
COARSE_SECONDS = 0.01
PREEMPTED_REQUESTS_SINCE = (0, 32, 0)
RECORD_SIGNALS = (c.ITL_SECONDS, c.TTFT_SECONDS, c.HELD_TOKEN_SECONDS)


@dataclass(frozen=True, slots=True)
class Found:
    """What advice is made from.  ``options``: flags the engine was started with, None where nobody
    tells; ``locked``: an info endpoint asked for a key; ``token``: we have one; ``local``: its command
    line was read; ``failure``: why the page was not read."""

    engine: str
    version: str
    readouts: Sequence[Readout] = ()
    signals: Sequence[Signal] = ()
    config: ModelConfig | None = None
    arithmetic_agrees: bool | None = None
    assumed: Sequence[str] = ()
    contradictions: Sequence[str] = ()
    scrape: Scrape | None = None
    options: frozenset[str] | None = None
    locked: bool = False
    token: bool = False
    local: bool = False
    failure: Failure | None = None


def advise(found: Found) -> tuple[Advice, ...]:
    """Problems first, then what unlocks most."""
    made = list(_unread(found) if found.failure is not None else _read(found))
    return tuple(sorted(made, key=lambda advice: list(Weight).index(advice.weight)))


def _unread(found: Found) -> Iterator[Advice]:
    failure = found.failure
    if failure is Failure.NOT_FOUND and found.engine == "sglang":
        yield _switch(switches.SGLANG_METRICS, Weight.PROBLEM, "SGLang serves no /metrics without it.")
        return
    if failure is Failure.NO_ENGINE_FAMILIES and found.engine == "vllm":
        why = "vLLM answers there, but its page has none of its metrics: remove --disable-log-stats."
        yield Advice(Weight.PROBLEM, Where.ENGINE, why)
        return
    flag, why = _FAILURES.get(failure, ("", "")) if failure else ("", "")
    if not why:
        why = f"The page can't be read ({failure}); the engine's own log may say why."
    yield Advice(Weight.PROBLEM, Where.EXPORTER if flag else Where.NONE, why, flag)


_FAILURES: dict[Failure, tuple[str, str]] = {
    Failure.CONNECTION_REFUSED: (
        "",
        "Nothing listens there: is the engine still loading, or on another port (vLLM 8000, SGLang 30000)?",
    ),
    Failure.DNS: ("", "The host's name can't be resolved from here."),
    Failure.TIMEOUT: (
        "",
        "No answer in time: a firewall or NetworkPolicy in between, or an engine that hangs.",
    ),
    Failure.TLS: (
        "--ca-file FILE",
        "Its certificate is not believed: name who signed it, or --tls-server-name.",
    ),
    Failure.ACCESS_FILE: ("", "One of our own files (token, CA, certificate) can't be used."),
    Failure.UNAUTHORIZED: ("--bearer-token-file FILE", "It asks for a key, or refuses the one we have."),
    Failure.NOT_FOUND: (
        "",
        "There is no /metrics: a gateway or another service, or metrics are switched off.",
    ),
    Failure.REDIRECT: ("", "It redirects, which is not followed: give the URL that it leads to."),
    Failure.NO_ENGINE_FAMILIES: ("", "The page is of neither vLLM nor SGLang: is it the engine's port?"),
    Failure.NOT_METRICS: ("", "That is no metrics page (HTML or binary): is it the engine's port?"),
    Failure.TOO_LARGE: ("--max-page-bytes N", "The page is larger than what is accepted."),
}


def _read(found: Found) -> Iterator[Advice]:
    yield from _wrong(found)
    yield from _config(found)
    yield from _inputs(found)
    yield from _engine(found)
    if found.scrape is not None and found.scrape.heavy:
        yield Advice(
            Weight.BETTER,
            Where.EXPORTER,
            "The engine takes long for its page, so polls are stretched, to 15 s at most: fewer cost less.",
            "--poll-interval 15",
        )


def _wrong(found: Found) -> Iterator[Advice]:
    if found.arithmetic_agrees is False:
        yield Advice(
            Weight.PROBLEM,
            Where.NONE,
            "Our bytes contradict the engine's: an input is wrong (cache dtype, parallelism, another model's "
            "config.json). `kvcache-exporter explain --target URL` shows each with its source.",
        )
    for said in found.contradictions:
        yield Advice(Weight.BETTER, Where.NONE, f"Two sources disagree: {said}.")


def _config(found: Found) -> Iterator[Advice]:
    unlocks = _missing(found, Reason.MODEL_CONFIG)
    if found.locked and not found.token and unlocks:
        why = "The endpoint that names the model asks for the engine's API key."
        yield Advice(Weight.BETTER, Where.EXPORTER, why, "--bearer-token-file FILE", unlocks=unlocks)
    elif unlocks:
        why = "config.json is not found: name it, or mount the model's directory or hub cache."
        yield Advice(Weight.BETTER, Where.EXPORTER, why, "--model-config PATH", unlocks=unlocks)
    if bad := _missing(found, Reason.BAD_MODEL_CONFIG):
        why = "config.json is found, but damaged or another model's."
        yield Advice(Weight.BETTER, Where.EXPORTER, why, "--model-config PATH", unlocks=bad)
    if unknown := _missing(found, Reason.UNSUPPORTED_ATTENTION):
        why = "This model's cache is not known here; set its bytes by hand if you know them."
        yield Advice(Weight.BETTER, Where.EXPORTER, why, "--bytes-per-token N", unlocks=unknown)


def _inputs(found: Found) -> Iterator[Advice]:
    for reason, flag in INPUT_FLAGS.items():
        if unlocks := _missing(found, reason):
            weight = Weight.OPTIONAL if reason is Reason.GPU_BANDWIDTH else Weight.BETTER
            yield Advice(weight, Where.EXPORTER, f"Nobody says {reason}.", flag, unlocks=unlocks)
    if found.assumed and not found.local:
        flags = " ".join(INPUT_FLAGS[Reason(name)] for name in found.assumed if name in INPUT_FLAGS)
        # Where the engine's own bytes agree, a default was the truth.
        weight = Weight.OPTIONAL if found.arithmetic_agrees else Weight.BETTER
        why = "Say what differs from the engine's defaults, or let us see its command line (same pod)."
        yield Advice(weight, Where.EXPORTER, why, flags)
        yield from _if_known(
            found,
            switches.VLLM_DEVELOPMENT,
            Weight.OPTIONAL,
            "Then the engine says all of that itself. Only where nobody else reaches it: this also opens "
            "endpoints that pause and reset it.",
        )


def _engine(found: Found) -> Iterator[Advice]:
    records = tuple(metric.name for metric in RECORD_SIGNALS)
    if not _on(found, switches.SGLANG_REQUEST_LOG):
        for traces in (switches.VLLM_TRACES, switches.SGLANG_TRACES):
            why = "One span per finished request, sent to the exporter: latency and occupancy by context."
            yield from _if_known(found, traces, Weight.BETTER, why, records)
    if _on(found, switches.SGLANG_REQUEST_LOG):
        why = "The engine writes a log of its requests; the exporter reads it where it is shared with it."
        yield Advice(Weight.OPTIONAL, Where.EXPORTER, why, "--request-log DIR", unlocks=records)
    elif not _on(found, switches.SGLANG_TRACES):
        why = "Or a log of requests instead of spans (here: --request-log DIR); prompts are in it."
        yield from _if_known(found, switches.SGLANG_REQUEST_LOG, Weight.OPTIONAL, why, records)
    why = 'Clients then send `x-custom-labels: {"route": "chat"}`, and prefix hits are told by route.'
    by_route = (c.PREFIX_QUERY_TOKENS.name, c.PREFIX_HIT_TOKENS.name)
    yield from _if_known(found, switches.SGLANG_ROUTES, Weight.OPTIONAL, why, by_route)
    if _missing(found, Reason.NO_TRAFFIC):
        why = "SGLang shows its gauges after the first batch: send one request, then check again."
        yield Advice(Weight.OPTIONAL, Where.NONE, why, unlocks=_missing(found, Reason.NO_TRAFFIC))
    release = parse_version(found.version)
    if found.engine == "vllm" and release is not None and release < PREEMPTED_REQUESTS_SINCE:
        why = "vLLM tells from 0.32.0 on how many requests were preempted; older ones count events only."
        yield Advice(Weight.OPTIONAL, Where.NONE, why, unlocks=(c.PREEMPTED_REQUESTS.name,))
    if found.engine and not found.version:
        why = "The engine's release is not known (/version or /server_info is closed): no flags are advised."
        yield Advice(Weight.OPTIONAL, Where.NONE, why)
    if any(known(r.sample.itl) and r.sample.itl.bounds[0] >= COARSE_SECONDS for r in found.readouts):
        why = "All gaps below 10 ms fall into one bucket: 11 and 22 ms look alike. Finer: "
        yield from _if_known(
            found, switches.VLLM_BUCKETS, Weight.OPTIONAL, why + c.ITL_WINDOW_SECONDS.name + "."
        )
    cache = switches.VLLM_CACHE_METRICS
    why = f"On the engine's own page, sampled: {', '.join(cache.own_metrics)} (how long blocks live)."
    yield from _if_known(found, cache, Weight.OPTIONAL, why)


def _if_known(
    found: Found, switch: Switch, weight: Weight, why: str, unlocks: tuple[str, ...] = ()
) -> Iterator[Advice]:
    """The advice, where this release has the flag and was not started with it."""
    release = parse_version(found.version)
    has_it = found.engine == switch.software and release is not None and release >= switch.since
    if has_it and not _on(found, switch):
        yield _switch(switch, weight, why, unlocks, release or ())


def _on(found: Found, switch: Switch) -> bool:
    return found.options is not None and switch.option in found.options


def _switch(
    switch: Switch, weight: Weight, why: str, unlocks: tuple[str, ...] = (), release: tuple[int, ...] = ()
) -> Advice:
    since, level = switches.SGLANG_TRACE_LEVEL
    leveled = switch is switches.SGLANG_TRACES and release >= since
    environment = f"{switch.environment} {level}" if leveled else switch.environment
    return Advice(weight, Where.ENGINE, why, switch.written, environment, unlocks)


def _missing(found: Found, reason: Reason) -> tuple[str, ...]:
    return tuple(signal.name for signal in found.signals if signal.reason == reason)
