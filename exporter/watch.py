"""Polls one engine: fetch, read, learn, publish; staleness and back-off."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx

from exporter import catalogue
from exporter.access import engine_client
from exporter.background import in_thread
from exporter.derive.inputs import Model
from exporter.facts import Facts, Source
from exporter.fetch import Failure, FetchError, check_end, get_text
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.log import log
from exporter.lookup import Learned, learn, load_model
from exporter.requests.probe import Engine, Probe
from exporter.requests.sink import RecordSink
from exporter.settings import ServeSettings, TargetSettings
from exporter.target import Reading, TargetState

# However long an engine takes for its page, it is polled this often, in seconds.
MAX_INTERVAL_S = 15.0
# Surroundings are looked at again this often even when nothing seems to change.
REFRESH_S = 300.0
RETRY_INFO_S = 30.0
# Larger pages are parsed off the event loop, so that a huge one delays nobody else.
INLINE_PAGE_CHARS = 512 * 1024
# The engine's rendering time is the quickest of the last fetches: the slow ones waited
# for the engine's event loop or for a connection, which costs it nothing.
FETCH_MEMORY = 5


# Settings of the process as a whole.
PROCESS_WIDE = frozenset(
    {
        "check_config",
        "config_file",
        "forward_traces",
        "listen_address",
        "log_format",
        "log_level",
        "modules",
        "probe_allow",
        "probe_timeout_offset",
        "state_directory",
        "traces_from",
        "web_config_file",
    }
)
# Settings that a running target follows without losing anything.
FOLLOWED = frozenset({"fetch_share", "timeout", "max_page_bytes", "hub"})


def ways(settings: ServeSettings) -> dict[str, object]:
    """What is said for all targets about how to watch them, beside what each target's own settings hold."""
    theirs = set(TargetSettings.model_fields) | {"target"}
    return settings.model_dump(exclude=theirs | PROCESS_WIDE | FOLLOWED)


class TargetWatch:
    """One target's poll loop."""

    def __init__(self, settings: ServeSettings, index: int, clock: Callable[[], float]) -> None:
        self.target = settings.target[index].with_common(settings)
        self.settings = settings
        self.clock = clock
        self.state = TargetState(self.target, settings.context, settings.poll_interval)
        self.probe: Probe | None = None
        self._fetches: deque[float] = deque(maxlen=FETCH_MEMORY)
        self.learned: Learned | None = None
        self._learned_at: float | None = None
        self._learn_again_s = REFRESH_S
        self._config_key: object = None
        self._config_task: asyncio.Task[None] | None = None
        self._said: object = None
        self.address = ""
        """Where the engine is, for a name that must not be resolved again."""
        self._said_model: Model | None = None

    def goes_on_as(self, other: TargetWatch) -> bool:
        """Whether ``other`` would watch the same engine in the same way, so that this one can go on."""
        return self.target == other.target and ways(self.settings) == ways(other.settings)

    def probe_by(self, sink: RecordSink) -> Probe | None:
        """The probe of this target, where probes are wanted."""
        interval = self.settings.probe_interval
        if interval is None:
            return None
        contexts = [n for n in self.settings.context if n <= self.settings.probe_max_context]
        return Probe(self.target.base_url, sink, contexts, self._probed, interval_seconds=interval)

    def _probed(self) -> Engine | None:
        if not self.state.readouts:
            return None
        readout = self.state.readouts[0]
        lengths = [f.value for f in readout.figures if f.metric is catalogue.MAX_MODEL_LEN_TOKENS]
        sink = self.state.records
        return Engine(
            model_name=sink.model_name if sink else "",
            sglang=readout.sample.software == "sglang",
            max_model_len_tokens=lengths[0] if lengths else None,
        )

    async def run_probe(self, probe: Probe) -> None:
        """Probe until cancelled."""
        async with engine_client(self.target) as client:
            await probe.run(client)

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(engine_client(self.target))
            while True:
                await self.poll(client)
                await asyncio.sleep(self.state.interval)

    async def poll(self, client: httpx.AsyncClient, seconds: float | None = None) -> None:
        """One poll; never raises but for cancellation.

        ``seconds``: a limit on all of it, page and surroundings, for who can't wait; the settings'
        limits hold in any case.
        """
        state = self.state
        state.fetches += 1
        started = self.clock()
        until = None if seconds is None else started + seconds
        try:
            text = await get_text(
                client,
                f"{self.target.base_url}/metrics",
                timeout=self._left(self.settings.timeout, until),
                max_bytes=self.settings.max_page_bytes,
            )
            state.fetch_seconds = self.clock() - started
            self._fetches.append(state.fetch_seconds)
            read = state.read
            reading = read(text) if len(text) < INLINE_PAGE_CHARS else await asyncio.to_thread(read, text)
            check_end(text)
            await self._learn_if_due(client, reading, until)
            state.accept(reading, self.clock(), time.time())
        except FetchError as error:
            self.give_up(error)
        except Exception as error:
            self.give_up(FetchError(Failure.INTERNAL, repr(error)))
        else:
            self._say_up()
        state.interval = self._interval()
        state.expire(self.clock())

    def give_up(self, error: FetchError) -> None:
        """Count a poll that gave nothing."""
        self.state.fail(error.reason, str(error))
        self._say("down", error.reason, str(error))

    def _left(self, most: float, until: float | None) -> float:
        """Seconds that something may take: ``most``, or what is left until then."""
        return most if until is None else max(0.0, min(most, until - self.clock()))

    def _interval(self) -> float:
        base = self.settings.poll_interval
        if len(self._fetches) < FETCH_MEMORY:
            return base
        return max(base, min(min(self._fetches) / self.settings.fetch_share, MAX_INTERVAL_S))

    # -- surroundings ---------------------------------------------------------

    async def _learn_if_due(self, client: httpx.AsyncClient, reading: Reading, until: float | None) -> None:
        now = self.clock()
        due = self._learned_at is None or now - self._learned_at > self._learn_again_s
        # After a failed poll it may be another process, even where its page looks the same.
        back = not self.state.up or self.state.last_attempt_failed is not None
        new = back or self.state.is_new(reading)
        if not due and not new:
            return
        learned = await learn(
            client, self.target, reading.page.software, lambda most: self._left(most, until), self.address
        )
        self.learned, self._learned_at = learned, now
        self._learn_again_s = REFRESH_S if learned.complete else RETRY_INFO_S
        if not new and not learned.complete:
            # The same process: what it said before holds on while an endpoint is silent.
            before = self.state.facts.get(Source.ENGINE, Facts())
            learned = replace(learned, engine=learned.engine.filled_from(before))
        self.state.learn(learned.engine, learned.command_line)
        await self._find_config(learned, new, until)

    async def _find_config(self, learned: Learned, new: bool, until: float | None) -> None:
        """Local files at once; a hub may take its time, so the polls go on meanwhile."""
        said = self.state.facts
        reported = learned.engine.model or (
            said[Source.COMMAND_LINE].model if Source.COMMAND_LINE in said else None
        )
        explicit = self.target.model_config_path
        key = (explicit, reported, learned.working_directory, learned.hub_cache)
        # A new process may have another model under the same path, so then it is read again.
        same = known(self.state.model.shape) and not new
        if key == self._config_key and (same or self._searching()):
            return
        self._config_key = key
        later = False
        if self._config_task is not None:
            self._config_task.cancel()

        async def look() -> None:
            model = await in_thread(
                lambda: load_model(
                    explicit,
                    reported,
                    allow_hub=self.settings.hub,
                    working_directory=learned.working_directory,
                    hub_cache=learned.hub_cache,
                )
            )
            if key == self._config_key:
                self.state.model = model
                if later:
                    # Not before: until this poll is accepted, the readouts are of the process before.
                    self.state.rederive()
                self._say_config(model)

        self._config_task = asyncio.create_task(look())
        _, looking = await asyncio.wait({self._config_task}, timeout=self._left(self.settings.timeout, until))
        if looking:
            later = True
            self.state.model = Model(shape=Unavailable(Reason.MODEL_CONFIG, "being looked for"))

    async def settled(self) -> None:
        """Wait for a running look-up of config.json."""
        if self._config_task is not None:
            await asyncio.wait({self._config_task})

    def _searching(self) -> bool:
        return self._config_task is not None and not self._config_task.done()

    # -- state changes, said once -----------------------------------------------

    def _say(self, what: str, *why: object) -> None:
        if (what, why[:1]) != self._said:
            self._said = (what, why[:1])
            log.warning(
                "engine not read", target=self.state.name, reason=str(why[0]), detail=str(why[-1])[:300]
            )

    def _say_up(self) -> None:
        if self._said != ("up",):
            self._said = ("up",)
            first = self.state.readouts[0] if self.state.readouts else None
            log.info(
                "engine read",
                target=self.state.name,
                ranks=len(self.state.readouts),
                **(dict(first.info) if first else {}),
            )
            for readout in self.state.readouts:
                for said in readout.contradictions:
                    log.warning(
                        "inputs disagree", target=self.state.name, input=said.input, detail=said.detail
                    )

    def _say_config(self, model: Model) -> None:
        if model == self._said_model:
            return
        self._said_model = model
        if isinstance(model.shape, Unavailable):
            log.warning(
                "no usable config.json",
                target=self.state.name,
                reason=str(model.shape.reason),
                detail=model.shape.detail[:300],
            )
        else:
            log.info("config.json read", target=self.state.name, source=model.source, location=model.location)
