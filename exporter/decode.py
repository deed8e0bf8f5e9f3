"""Decode as the scrape alone shows it: ITL by tier of the mean context, and its floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exporter import catalogue as c
from exporter.derive.readout import Readout
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.requests.floor import decode_floor_seconds, gpu_bytes_per_second, nvml_gpu_name, over_floor
from exporter.requests.tiers import Tiers
from exporter.requests.window import WindowItl

Rank = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Floor:
    """Seconds a decode step takes at least, and the last interval's mean ITL over it."""

    seconds: float | Unavailable
    ratio: float | Unavailable


def rank_of(readout: Readout) -> Rank:
    """What tells the entries of one target apart."""
    sample = readout.sample
    # The entry for a whole server has the empty rank, and a server of one rank may have it too.
    return sample.model_name, f"{sample.engine}*" if sample.whole_server else sample.engine, sample.replica


class DecodeWatch:
    """Windows and floors of one target's ranks, poll by poll."""

    def __init__(self, contexts: Sequence[int], gpu_bandwidth: str | None = None) -> None:
        """``contexts``: tiers in tokens; ``gpu_bandwidth``: a GPU's name, or its bytes per
        second; without it, what NVML sees if the extra is installed."""
        self.tiers = Tiers(contexts)
        self._bandwidth = gpu_bytes_per_second(gpu_bandwidth or nvml_gpu_name())
        self.windows: dict[Rank, WindowItl] = {}
        self.floors: dict[Rank, Floor] = {}

    def observe(self, readouts: Sequence[Readout]) -> None:
        """Take one poll's readouts; ranks that are gone are forgotten."""
        figures = {rank_of(r): {f.metric: f.value for f in r.figures} for r in readouts}
        ranks = [r for r in readouts if not r.sample.whole_server]
        windows: dict[Rank, WindowItl] = {}
        self.floors = {}
        for readout in readouts:
            key = rank_of(readout)
            window = windows[key] = self.windows.get(key) or WindowItl(self.tiers)
            # A server that keeps one histogram for all its ranks: their mean.
            of = ranks if readout.sample.whole_server else [readout]
            window.observe(
                readout.sample.itl,
                _total([figures[rank_of(one)] for one in of], c.USED_TOKENS),
                _total([figures[rank_of(one)] for one in of], c.RUNNING_SEQUENCES),
            )
            if not readout.sample.whole_server:
                self.floors[key] = self._floor(readout, figures[key], window)
        self.windows = windows

    def _floor(self, readout: Readout, figures: Mapping[c.Metric, float], window: WindowItl) -> Floor:
        def said(metric: c.Metric) -> float | Unavailable:
            missing = readout.missing.get(metric, Unavailable(Reason.NOT_REPORTED, metric.name))
            return figures.get(metric, missing)

        seconds = decode_floor_seconds(
            said(c.MODEL_WEIGHTS_BYTES),
            said(c.USED_BYTES),
            self._bandwidth,
            readout.inputs.count("tensor_parallel_size", Reason.TENSOR_PARALLEL_SIZE),
            readout.inputs.count("pipeline_parallel_size", Reason.PIPELINE_PARALLEL_SIZE),
        )
        return Floor(seconds, over_floor(window.mean_itl_seconds, seconds))


def _total(ranks: Sequence[Mapping[c.Metric, float]], metric: c.Metric) -> float | Unavailable:
    if not ranks or any(metric not in figures for figures in ranks):
        return Unavailable(Reason.NOT_REPORTED, metric.name)
    return sum(figures[metric] for figures in ranks)


def shown(floor: float | Unavailable) -> bool:
    """Whether a missing floor is worth telling: not where nobody asked for one."""
    return known(floor) or floor.reason is not Reason.GPU_BANDWIDTH
