"""The state of one watched engine: what it said last, for how long that holds.

No I/O and no clock of its own: pages, facts and times are handed in, so the
same code serves the poller, ``explain`` and the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exporter import catalogue
from exporter.decode import DecodeWatch
from exporter.derive.derive import derive
from exporter.derive.inputs import Model
from exporter.derive.readout import Readout
from exporter.engines import detect
from exporter.engines.exposition import Dropped, Page
from exporter.engines.sample import MAX_RANKS, EngineSample
from exporter.facts import Facts, Source
from exporter.fetch import Failure, FetchError, check_page
from exporter.kvmath.known import known
from exporter.requests.sink import RecordSink
from exporter.settings import TargetSettings
from exporter.usage import UsageHistogram

# Figures older than the longer of these are not served (seconds; missed polls).
STALE_SECONDS = 30.0
STALE_POLLS = 3

Rank = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """One page, read but not yet derived."""

    page: Page
    samples: tuple[EngineSample, ...]
    version: str | None  # the release that the samples were read for


def rank(sample: EngineSample) -> Rank:
    """What tells ranks of one target apart."""
    return sample.model_name, sample.engine, sample.replica


class TargetState:
    """One engine's last readout and the exporter's own counters about it."""

    def __init__(self, settings: TargetSettings, contexts: Sequence[int], poll_interval: float) -> None:
        self.settings = settings
        self.name = settings.label
        self.contexts = tuple(contexts)
        self.base_interval = poll_interval
        self.interval = poll_interval
        self.facts: dict[Source, Facts] = {Source.SETTING: settings.facts()}
        self.model = Model()
        self._override = settings.override()
        self.readouts: tuple[Readout, ...] = ()
        self.usage: dict[Rank, UsageHistogram] = {}
        self.decode = DecodeWatch(contexts, settings.gpu_bandwidth)
        self.fetches = 0
        self.errors: Counter[Failure] = Counter()
        self.dropped: Counter[str] = Counter()
        self.engine_restarts = 0
        self.records: RecordSink | None = None
        """Finished requests of this target; None where nobody can report any."""
        self.price_per_hour: float | None = None
        self.fetch_seconds: float | None = None
        self.last_success: float | None = None
        self.last_success_timestamp: float | None = None
        self.last_attempt_failed: Failure | None = None
        self.last_failure_detail = ""
        self._fingerprint: object = None
        self._marks: Mapping[Rank, tuple[float, ...]] = {}

    # -- reading -------------------------------------------------------------

    def read(self, text: str) -> Reading:
        """Parse a page.  Raises :class:`FetchError` where it is no engine's."""
        page = detect.read(check_page(text))
        for reason, many in page.dropped.items():
            self.dropped[reason] += many
        if not page.software:
            raise FetchError(Failure.NO_ENGINE_FAMILIES, "the page has no engine's metrics")
        version = self._version()
        samples = detect.samples(page, version)
        if len(samples) >= MAX_RANKS:
            self.dropped[Dropped.TOO_MANY] += 1
        return Reading(page, samples, version)

    def is_new(self, reading: Reading) -> bool:
        """True where this is another engine process than before: its info
        endpoints and config must be read again before anything is derived."""
        return self._identity(reading) != self._fingerprint or self._went_back(reading)

    def learn(self, engine: Facts, command_line: Facts | None) -> None:
        """Replace what the engine and its command line say."""
        self.facts = {Source.SETTING: self.settings.facts(), Source.ENGINE: engine}
        if command_line is not None:
            self.facts[Source.COMMAND_LINE] = command_line

    def accept(self, reading: Reading, at: float, timestamp: float | None = None) -> None:
        """Derive and publish.  ``at``: seconds, any epoch that :meth:`expire`
        shares; ``timestamp``: the same moment as a Unix time, to be exported."""
        if self._went_back(reading):
            self.engine_restarts += 1
        samples = reading.samples
        if reading.version != self._version():  # it was learned since
            samples = detect.samples(reading.page, self._version())
        samples = tuple(self._named(self._never_less(sample)) for sample in samples)
        self.readouts = tuple(self._derive(sample) for sample in samples)
        self._observe_usage(samples)
        self.decode.observe(self.readouts)
        self._tell_records(samples)
        self._fingerprint = self._identity(reading)
        self._marks = _marks(reading.samples)
        self.last_success = at
        self.last_success_timestamp = timestamp
        self.last_attempt_failed = None

    def rederive(self) -> None:
        """Derive the last samples again, with what was learned since."""
        self.readouts = tuple(self._derive(readout.sample) for readout in self.readouts)

    def _derive(self, sample: EngineSample) -> Readout:
        return derive(
            sample,
            self.facts,
            replace(self.model, override=self._override),
            self.contexts,
            self.settings.route,
            self.settings.prefix_hit_objectives,
        )

    def fail(self, reason: Failure, detail: str = "") -> None:
        """Count a failed poll; the last figures stay until they are stale."""
        self.last_failure_detail = detail
        self.errors[reason] += 1
        self.last_attempt_failed = reason

    def expire(self, at: float) -> None:
        """Drop figures that are too old to be called current."""
        limit = max(STALE_SECONDS, STALE_POLLS * self.interval)
        if self.last_success is not None and at - self.last_success > limit:
            self.readouts = ()

    @property
    def up(self) -> bool:
        return bool(self.readouts)

    # -- internals -----------------------------------------------------------

    def _version(self) -> str | None:
        engine = self.facts.get(Source.ENGINE)
        return engine.version if engine else None

    def _named(self, sample: EngineSample) -> EngineSample:
        engine = self.facts.get(Source.ENGINE)
        if sample.model_name or engine is None:
            return sample
        return replace(sample, model_name=engine.served_model_name or "")

    def _never_less(self, sample: EngineSample) -> EngineSample:
        """A lower bound must not fall while the engine runs, or it would read as a restart."""
        now = sample.preempted_requests
        if not known(now) or sample.preempted_requests_exact:
            return sample
        for readout in self.readouts:
            before = readout.sample.preempted_requests
            if (
                rank(readout.sample) == rank(self._named(sample))
                and known(before)
                and not self._fell(readout.sample, sample)
            ):
                return replace(sample, preempted_requests=max(now, before))
        return sample

    @staticmethod
    def _fell(before: EngineSample, now: EngineSample) -> bool:
        return known(before.preemptions) and known(now.preemptions) and now.preemptions < before.preemptions

    @staticmethod
    def _identity(reading: Reading) -> object:
        return tuple(
            (
                s.software,
                rank(s),
                s.num_blocks,
                s.block_tokens,
                s.max_concurrency,
                s.device_pool_bytes,
                s.cache_dtype,
            )
            for s in reading.samples
        )

    def _went_back(self, reading: Reading) -> bool:
        now = _marks(reading.samples)
        return any(
            len(old) == len(new) and any(n < o for n, o in zip(new, old, strict=True))
            for key, new in now.items()
            if (old := self._marks.get(key)) is not None
        )

    def _tell_records(self, samples: Sequence[EngineSample]) -> None:
        if self.records is None:
            return
        # The first rank's: they run the same model.
        named = next((s.model_name for s in samples if s.model_name), "")
        self.records.model_name = named or self.records.model_name
        pools = [
            figure.value
            for readout in self.readouts
            for figure in readout.figures
            if figure.metric is catalogue.CAPACITY_TOKENS
        ]
        if self.price_per_hour is not None and sum(pools) > 0:
            self.records.dollars_per_token_second = self.price_per_hour / 3600 / sum(pools)

    def _observe_usage(self, samples: Sequence[EngineSample]) -> None:
        current: dict[Rank, UsageHistogram] = {}
        for sample in samples:
            if sample.whole_server:
                continue
            histogram = self.usage.get(rank(sample)) or UsageHistogram()
            if known(sample.usage_ratio):
                histogram.observe(sample.usage_ratio, max(1, round(self.interval / self.base_interval)))
            current[rank(sample)] = histogram
        self.usage = current


def _marks(samples: Sequence[EngineSample]) -> Mapping[Rank, tuple[float, ...]]:
    """Counters that only a restart can lower."""
    marks: dict[Rank, tuple[float, ...]] = {}
    for sample in samples:
        counters = [sample.preemptions if known(sample.preemptions) else 0.0]
        counters.append(sum(sample.requests.values()) if known(sample.requests) else 0.0)
        counters.append(sum(sample.prefix.query_tokens.values()) if known(sample.prefix) else 0.0)
        marks[rank(sample)] = tuple(counters)
    return marks
