"""The landing page: what a newcomer, or someone who was paged, wants to see first."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

from exporter import __version__
from exporter import catalogue as c
from exporter.derive.readout import Readout
from exporter.target import TargetState

STYLE = (
    "body{font-family:sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .9em;text-align:right;border-bottom:1px solid #ccc}td:first-child,th:first-child"
    "{text-align:left}.why{color:#777}"
)
NONE = "<span class=why>-</span>"


def page(states: Sequence[TargetState]) -> str:
    """HTML: links, and per engine how full the pool is and how many sequences still fit."""
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>KV-cache exporter</title>"
        f"<style>{STYLE}</style><h1>KV-cache exporter {html.escape(__version__)}</h1>"
        "<p>What the engine's usage ratio is a ratio of: bytes, tokens, sequences.</p>"
        "<p><a href=metrics>metrics</a> &middot; <a href=explain>explain</a>: every figure, how it came "
        "about, what is missing and why (<a href='explain?output=json'>json</a>) &middot; "
        "<a href='-/healthy'>healthy</a> &middot; <a href='-/ready'>ready</a> &middot; "
        "<a href='-/config'>settings</a> &middot; <a href=sd>service discovery</a></p>"
        + "".join(_target(state) for state in states)
        + "</html>"
    )


def _target(state: TargetState) -> str:
    title = f"<h2>{html.escape(state.name)}</h2>"
    if not state.up:
        return title + f"<p>Not read: {html.escape(str(state.last_attempt_failed or 'no answer yet'))}</p>"
    return title + "".join(_engine(r) for r in state.readouts if not r.sample.whole_server)


def _engine(readout: Readout) -> str:
    sample = readout.sample
    names = [sample.software, sample.model_name, sample.engine and f"engine {sample.engine}", sample.replica]
    pool = [
        ("usage", _one(readout, c.USAGE_RATIO, lambda v: f"{v:.1%}")),
        ("used", _one(readout, c.USED_BYTES, _gigabytes)),
        ("pool", _one(readout, c.CAPACITY_BYTES, _gigabytes)),
        ("pool, tokens", _one(readout, c.CAPACITY_TOKENS, lambda v: f"{v:,.0f}")),
        ("one token", _one(readout, c.BYTES_PER_TOKEN, lambda v: f"{v:,.0f} B")),
        ("running", _one(readout, c.RUNNING_SEQUENCES, lambda v: f"{v:.0f}")),
        ("waiting", _one(readout, c.WAITING_SEQUENCES, lambda v: f"{v:.0f}")),
    ]
    most, free = _by_context(readout, c.MAX_SEQUENCES), _by_context(readout, c.FREE_SEQUENCES)
    sequences = [(f"{int(n):,} tokens", f"{free.get(n, NONE)} of {most[n]}") for n in most]
    return (
        f"<p>{html.escape(' '.join(name for name in names if name))}</p>"
        + _table(pool)
        + ("<p>Sequences that still fit, by context:</p>" + _table(sequences) if sequences else "")
    )


def _table(cells: Iterable[tuple[str, str]]) -> str:
    pairs = list(cells)
    head = "".join(f"<th>{name}</th>" for name, _ in pairs)
    return f"<table><tr>{head}</tr><tr>{''.join(f'<td>{value}</td>' for _, value in pairs)}</tr></table>"


def _one(readout: Readout, metric: c.Metric, shown: Callable[[float], str]) -> str:
    for figure in readout.figures:
        if figure.metric is metric:
            return shown(figure.value)
    why = readout.missing.get(metric)
    return (
        f"<span class=why title='{html.escape(why.detail, quote=True)}'>{why.reason}</span>" if why else NONE
    )


def _by_context(readout: Readout, metric: c.Metric) -> dict[str, str]:
    return {f.labels["context"]: f"{f.value:.0f}" for f in readout.figures if f.metric is metric}


def _gigabytes(value: float) -> str:
    """Decimal gigabytes, as GPUs are sold."""
    return f"{value / 1e9:,.2f} GB" if value >= 1e8 else f"{value / 1e6:,.2f} MB"
