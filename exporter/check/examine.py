"""One readout of an engine, taken apart into a report."""

from __future__ import annotations

import time
from collections.abc import Sequence

import httpx

from exporter import catalogue as c
from exporter.access import engine_client
from exporter.catalogue import CATALOGUE, Group
from exporter.check.advice import Found, advise
from exporter.check.report import ModelConfig, Report, Scrape, Signal
from exporter.collect import families
from exporter.engines.info import ENDPOINTS
from exporter.facts import Facts, Source
from exporter.fetch import Failure, FetchError, get_text
from exporter.kvmath.known import Reason, known
from exporter.lookup import Learned, learn
from exporter.once import watch_of
from exporter.settings import FETCH_SHARE, CheckSettings, TargetSettings
from exporter.target import TargetState
from exporter.watch import MAX_INTERVAL_S, TargetWatch

# As the alert KVCacheArithmeticMismatch has it (a test compares them).
TOLERANCE = 0.05
# The quickest of so many fetches: the first one also made the connection.
FETCHES = 3
# Nothing of the engine: about the exporter, about trust, or the user's own words.
NOT_SIGNALS = (
    *(c.ENGINE_UP, c.UNAVAILABLE, c.INPUT_ASSUMED, c.INPUT_CONTRADICTION),
    *(c.PREFIX_HIT_OBJECTIVE, c.PREEMPTED_REQUESTS_LOWER_BOUND, c.ITL_WINDOW_UNATTRIBUTED),
)
SIGNALS = [m for m in CATALOGUE if m.group is not Group.OURSELVES and m not in NOT_SIGNALS]
# Nobody answered; with the other failures somebody did.
NO_ANSWER = frozenset(
    {
        *(Failure.CONNECTION_REFUSED, Failure.CONNECTION_FAILED, Failure.DNS, Failure.TLS, Failure.TIMEOUT),
        *(Failure.ACCESS_FILE, Failure.INTERNAL),
    }
)
# Why a series that no poll can give is not there.
NEEDS_RECORDS = "needs_records"
NEEDS_PRICE = "price_per_hour"
NOT_SHOWN = "not_shown"


async def examine(settings: CheckSettings) -> Report:
    """Ask the engine, several times for its page and once for the rest.  Never raises for what it says."""
    watcher = watch_of(settings, [TargetSettings(url=settings.url)]).watchers[0]
    state = watcher.state
    async with engine_client(watcher.target) as client:
        await watcher.poll(client)
        await watcher.settled()
        if state.up:
            return _report(watcher, await _cost(client, settings, watcher))
        return await _unread(client, watcher)


async def _cost(client: httpx.AsyncClient, settings: CheckSettings, watcher: TargetWatch) -> Scrape | None:
    sizes: list[int] = []
    times = [watcher.state.fetch_seconds or settings.timeout]
    try:
        for _ in range(FETCHES - 1):
            started = time.perf_counter()
            text = await get_text(
                client,
                f"{watcher.target.base_url}/metrics",
                timeout=settings.timeout,
                max_bytes=watcher.settings.max_page_bytes,
            )
            times.append(time.perf_counter() - started)
            sizes.append(len(text.encode(errors="replace")))
    except FetchError:
        return None  # it answered once; what it costs is not known
    seconds = min(times)
    interval = max(settings.poll_interval, min(seconds / FETCH_SHARE, MAX_INTERVAL_S))
    share = seconds / interval
    return Scrape(max(sizes), seconds, interval, share, heavy=share > 2 * FETCH_SHARE)


async def _unread(client: httpx.AsyncClient, watcher: TargetWatch) -> Report:
    """Without a page the other endpoints may still tell whose port it is."""
    state = watcher.state
    failure = state.last_attempt_failed or Failure.INTERNAL
    facts = Facts()
    if failure in (Failure.NOT_FOUND, Failure.NO_ENGINE_FAMILIES, Failure.UNAUTHORIZED):
        for software in ENDPOINTS:
            learned = await learn(client, watcher.target, software)
            facts = facts.filled_from(learned.engine)
    engine = facts.software or ""
    found = Found(engine, facts.version or "", failure=failure)
    return Report(
        target=watcher.target.url,
        reachable=failure not in NO_ANSWER,
        engine=engine,
        version=facts.version or "",
        failure=failure,
        failure_detail=state.last_failure_detail,
        advice=advise(found),
    )


def _report(watcher: TargetWatch, scrape: Scrape | None) -> Report:
    state, target = watcher.state, watcher.target
    learned = watcher.learned
    engine = state.facts.get(Source.ENGINE, Facts())
    ratios = _ratios(state)
    # The one that is furthest off.
    ratio = max(ratios, key=lambda r: abs(r - 1)) if ratios else None
    agrees = None if ratio is None else abs(ratio - 1) <= TOLERANCE
    contradictions = tuple(
        dict.fromkeys(f"{x.input}: {x.detail}" for readout in state.readouts for x in readout.contradictions)
    )
    found = Found(
        engine=state.readouts[0].sample.software,
        version=engine.version or "",
        readouts=state.readouts,
        signals=signals(state),
        config=_config(state),
        arithmetic_agrees=agrees,
        assumed=_assumed(state),
        contradictions=contradictions,
        scrape=scrape,
        options=_options(learned),
        locked=bool(learned and learned.locked),
        token=target.bearer_token_file is not None,
        local=bool(learned and learned.command_line),
    )
    ranks = [readout for readout in state.readouts if not readout.sample.whole_server]
    return Report(
        target=target.url,
        reachable=True,
        engine=found.engine,
        version=found.version,
        model_names=tuple(dict.fromkeys(r.sample.model_name for r in ranks if r.sample.model_name)),
        ranks=len(ranks),
        signals=tuple(found.signals),
        model_config=found.config,
        arithmetic_ratio=ratio,
        arithmetic_agrees=agrees,
        assumed=tuple(found.assumed),
        contradictions=contradictions,
        scrape=scrape,
        advice=advise(found),
    )


def signals(state: TargetState) -> tuple[Signal, ...]:
    """Every series of ours about an engine: there, or why not; what /metrics would say, exactly."""
    there: set[str] = set()
    reasons: dict[str, str] = {}
    for family in families([state]):
        for sample in family.samples:
            if family.name == c.UNAVAILABLE.name:
                reasons.setdefault(sample.labels["signal"], sample.labels["reason"])
            else:
                there.add(family.name)
    return tuple(_signal(metric, there, reasons, state) for metric in SIGNALS)


def _signal(metric: c.Metric, there: set[str], reasons: dict[str, str], state: TargetState) -> Signal:
    name = metric.name
    if name in there or name.removesuffix("_total") in there:
        return Signal(name, available=True)
    if (reason := reasons.get(metric.signal)) is not None:
        details = [r.missing[metric].detail for r in state.readouts if metric in r.missing]
        return Signal(name, available=False, reason=reason, detail=next(filter(None, details), ""))
    if metric in (c.DECODE_FLOOR_SECONDS, c.ITL_FLOOR_RATIO) and state.settings.gpu_bandwidth is None:
        return Signal(name, available=False, reason=Reason.GPU_BANDWIDTH, detail="nobody says the GPU")
    if metric is c.SEQUENCE_COST:
        return Signal(name, available=False, reason=NEEDS_PRICE, detail="--price-per-hour of serve")
    if "records" in metric.source:
        detail = "finished requests tell it: traces, a request log or the plugin"
        return Signal(name, available=False, reason=NEEDS_RECORDS, detail=detail)
    return Signal(
        name, available=False, reason=NOT_SHOWN, detail="serve shows it once it has watched for a while"
    )


def _ratios(state: TargetState) -> Sequence[float]:
    return [f.value for r in state.readouts for f in r.figures if f.metric is c.ARITHMETIC_RATIO]


def _assumed(state: TargetState) -> tuple[str, ...]:
    found = {
        figure.labels["input"]
        for readout in state.readouts
        for figure in readout.figures
        if figure.metric is c.INPUT_ASSUMED
    }
    return tuple(sorted(found))


def _config(state: TargetState) -> ModelConfig:
    shape, model = state.model.shape, state.model
    problem = "" if known(shape) else f"{shape.reason}: {shape.detail}"
    return ModelConfig(known(shape), str(model.source), model.location, problem)


def _options(learned: Learned | None) -> frozenset[str] | None:
    if learned is None:
        return None
    said = learned.engine.options
    return said if said is not None else learned.command_line.options if learned.command_line else None
