"""Targets fetched on demand: what was learned about each is kept for a while, the figures are not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from exporter.access import engine_client
from exporter.fetch import Failure, FetchError
from exporter.kvmath.known import known
from exporter.probing.address import addresses_of, pin
from exporter.probing.allow import AllowList, Goal, RefusedTargetError, goal
from exporter.settings import Overrides, ServeSettings, TargetSettings
from exporter.shared import Shared
from exporter.target import TargetState
from exporter.watch import TargetWatch

# What info endpoints and config.json said is kept for this many targets, this long after their last probe.
MAX_TARGETS = 500
FORGET_S = 600.0
# Fetches at the same time; more wait for their turn, within their own time.
MAX_FETCHES = 64
# Fetches of one host and port at the same time, so that what hangs there leaves places for the others.
MAX_FETCHES_OF_ONE = 8
# Waiting for a place takes at most this share of a probe's time: what is left must do for a good engine.
PLACE_SHARE = 0.5
# The least that a probe is given, however short the scraper's timeout is (seconds).
LEAST_S = 0.1


class Outcome(StrEnum):
    """How a probe ended (a bounded label)."""

    READ = "read"
    FAILED = "failed"
    TIMEOUT = "timeout"
    BAD_TARGET = "bad_target"
    UNKNOWN_MODULE = "unknown_module"
    FORBIDDEN = "forbidden"
    BUSY = "busy"


STATUS = {
    Outcome.BUSY: 503,
    Outcome.TIMEOUT: 504,
    Outcome.BAD_TARGET: 400,
    Outcome.UNKNOWN_MODULE: 400,
    Outcome.FORBIDDEN: 403,
}


class ProbeError(Exception):
    """A probe that has no exposition to answer with.  ``steps``: what was done until then."""

    def __init__(self, outcome: Outcome, text: str, steps: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.outcome = outcome
        self.steps = tuple(steps)

    @property
    def status(self) -> int:
        return STATUS[self.outcome]


@dataclass(frozen=True, slots=True)
class Probed:
    """A finished probe: the target's state, and what was done, for people."""

    state: TargetState
    steps: tuple[str, ...]


@dataclass(slots=True)
class _Known:
    watch: TargetWatch
    used: float


class Prober:
    """All probes of one process.  ``settings``: those in force."""

    def __init__(
        self, settings: Callable[[], ServeSettings], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._running: Shared[Probed] = Shared()
        self._places = asyncio.Semaphore(MAX_FETCHES)
        self._at: Counter[tuple[str, int]] = Counter()
        self.outcomes: Counter[Outcome] = Counter()

    async def probe(self, target: str | None, module: str | None, seconds: float | None) -> Probed:
        """Fetch a target.  ``seconds``: the scraper's own limit.  Raises :class:`ProbeError`."""
        try:
            probed = await self._probe(target, module, seconds)
        except ProbeError as error:
            self.outcomes[error.outcome] += 1
            raise
        self.outcomes[Outcome.READ if probed.state.up else Outcome.FAILED] += 1
        return probed

    async def _probe(self, target: str | None, module: str | None, seconds: float | None) -> Probed:
        settings = self._settings()
        if not target:
            raise ProbeError(Outcome.BAD_TARGET, "/probe?target=URL: the target is missing")
        try:
            aim = goal(target)
        except ValueError as error:
            raise ProbeError(Outcome.BAD_TARGET, str(error)) from None
        if module and module not in settings.modules:
            raise ProbeError(Outcome.UNKNOWN_MODULE, "no such module in the settings")
        allowed = AllowList(settings.probe_allow)
        if not allowed.may_name(aim):
            raise ProbeError(Outcome.FORBIDDEN, "probe_allow does not name this target")
        limit = settings.timeout
        if seconds is not None:
            limit = min(limit, max(LEAST_S, seconds - settings.probe_timeout_offset))
        key = aim.url, module or ""
        # One that runs may have more time than this scraper gives; a new one keeps to the limit itself.
        patience = limit if key in self._running else None
        task = self._running.join(key, lambda: self._fetch(aim, module or "", allowed, limit))
        try:
            async with asyncio.timeout(patience):
                return await asyncio.shield(task)
        except TimeoutError:
            raise ProbeError(Outcome.TIMEOUT, f"no result in {limit:g} s") from None

    async def _fetch(self, aim: Goal, module: str, allowed: AllowList, limit: float) -> Probed:
        until = self._clock() + limit
        steps = [f"target {aim.url}, module {module or '(none)'}, {limit:g} s for everything"]
        async with self._place(aim, limit, steps):
            watch = self._watch(aim, module)
            state = watch.state
            try:
                async with asyncio.timeout(max(0.0, until - self._clock())):
                    found = await addresses_of(aim)
                steps.append(f"resolved to {', '.join(map(str, found))}")
                try:
                    address, pattern = allowed.take(aim, found)
                except RefusedTargetError as refused:
                    raise ProbeError(Outcome.FORBIDDEN, str(refused), steps) from None
                steps.append(f"allowed by {pattern.text}; connecting to {address}")
                watch.address = str(address)
                async with engine_client(watch.target) as client:
                    pin(client, address)
                    await watch.poll(client, until - self._clock())
            except FetchError as error:
                watch.give_up(error)
            except TimeoutError:
                watch.give_up(FetchError(Failure.TIMEOUT, f"the name was not resolved in {limit:g} s"))
            if state.last_attempt_failed is not None:
                state.readouts = ()  # what it said before is not what it says now
                steps.append(f"failed: {state.last_attempt_failed}: {state.last_failure_detail[:300]}")
            else:
                steps.append(f"fetched in {state.fetch_seconds or 0:.3f} s, {len(state.readouts)} rank(s)")
            shape = state.model.shape
            steps.append("config.json understood" if known(shape) else f"no config.json: {shape.reason}")
            return Probed(state, tuple(steps))

    @asynccontextmanager
    async def _place(self, aim: Goal, limit: float, steps: Sequence[str]) -> AsyncIterator[None]:
        """One of the places for fetches.  Without one nothing is known of the engine: that is no 0 for it."""
        at = aim.host, aim.port
        if self._at[at] >= MAX_FETCHES_OF_ONE:
            raise ProbeError(Outcome.BUSY, "too many probes of this host and port are under way", steps)
        self._at[at] += 1
        try:
            try:
                async with asyncio.timeout(limit * PLACE_SHARE):
                    await self._places.acquire()
            except TimeoutError:
                why = f"other probes took all places for {limit * PLACE_SHARE:g} s"
                raise ProbeError(Outcome.BUSY, why, steps) from None
            try:
                yield
            finally:
                self._places.release()
        finally:
            self._at[at] -= 1
            if not self._at[at]:
                del self._at[at]

    def _watch(self, aim: Goal, module: str) -> TargetWatch:
        """What is known about this target, or a new beginning."""
        now = self._clock()
        while self._known and (
            len(self._known) > MAX_TARGETS or now - next(iter(self._known.values())).used > FORGET_S
        ):
            self._known.popitem(last=False)
        settings = self._settings()
        key = aim.url, module
        entry = self._known.get(key)
        told = settings.modules[module].said() if module in settings.modules else {}
        target = TargetSettings(**{**told, "url": aim.url})
        # What is said at the top about all engines (tokens among it) is about those that are configured.
        said = settings.model_copy(update={**dict(Overrides()), "target": [target]})
        fresh = TargetWatch(said, 0, self._clock)
        if entry is None or not entry.watch.goes_on_as(fresh):  # a module may have changed
            entry = self._known[key] = _Known(fresh, now)
        entry.used = now
        self._known.move_to_end(key)
        return entry.watch
