"""One readout for people: every figure, how it came about, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exporter.derive.readout import Readout
from exporter.kvmath.known import known
from exporter.printable import printable
from exporter.target import TargetState


def as_dict(state: TargetState) -> dict[str, Any]:
    """The explanation as plain data (for JSON)."""
    return {
        "target": state.name,
        "up": state.up,
        "last_failure": state.last_attempt_failed,
        "dropped_samples": {reason: many for reason, many in sorted(state.dropped.items()) if many},
        "model_config": {
            "source": state.model.source,
            "location": state.model.location,
            "problem": None
            if known(state.model.shape)
            else {"reason": state.model.shape.reason, "detail": state.model.shape.detail},
        },
        "engines": [_readout(readout) for readout in state.readouts],
    }


def _readout(readout: Readout) -> dict[str, Any]:
    sample = readout.sample
    return {
        "software": sample.software,
        "model_name": sample.model_name,
        "engine": sample.engine,
        "replica": sample.replica,
        "whole_server": sample.whole_server,
        "inputs": [
            {
                "name": choice.name,
                "value": choice.value,
                "source": choice.source,
                "others": [{"source": source, "value": value} for source, value in choice.disagrees],
            }
            for choice in readout.inputs.choices.values()
            if choice.value is not None
        ],
        "steps": [
            {"name": s.name, "formula": s.formula, "result": s.result, "unit": s.unit} for s in readout.steps
        ],
        "figures": [
            {"series": f.metric.name, "labels": dict(f.labels), "value": f.value} for f in readout.figures
        ],
        "unavailable": [
            {"signal": metric.signal, "reason": why.reason, "detail": why.detail}
            for metric, why in readout.missing.items()
        ],
        "contradictions": [
            {"input": x.input, "used": x.used, "other": x.other, "detail": x.detail}
            for x in readout.contradictions
        ],
    }


def as_text(state: TargetState) -> str:
    """The explanation as a page of text."""
    return "\n".join(map(printable, _lines(as_dict(state)))) + "\n"


def _lines(told: dict[str, Any]) -> Iterable[str]:
    yield f"Target {told['target']}: {'read' if told['up'] else 'NOT READ'}" + (
        f" (last failure: {told['last_failure']})" if told["last_failure"] else ""
    )
    config = told["model_config"]
    if config["problem"]:
        yield f"config.json: {config['problem']['reason']}: {config['problem']['detail']}"
    else:
        yield f"config.json: {config['location']} ({config['source']})"
    for reason, many in told["dropped_samples"].items():
        yield f"samples not used: {many} x {reason}"
    for engine in told["engines"]:
        yield ""
        names = [f"{k} {engine[k]}" for k in ("model_name", "engine", "replica") if engine[k]]
        scope = " (counters of all ranks together)" if engine["whole_server"] else ""
        yield f"== {engine['software']} {', '.join(names)}{scope} =="
        yield from _section("Inputs", _inputs(engine["inputs"]))
        yield from _section(
            "Contradictions",
            [f"{x['input']}: {x['detail']}; used: {x['used']}" for x in engine["contradictions"]],
        )
        yield from _section(
            "Arithmetic",
            [f"{s['name']}: {s['formula']} = {s['result']} {s['unit']}".rstrip() for s in engine["steps"]],
        )
        yield from _section("Figures", [_figure(f) for f in engine["figures"]])
        yield from _section("Missing", [_missing(m) for m in engine["unavailable"]])


def _section(title: str, lines: list[str]) -> Iterable[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _inputs(inputs: list[dict[str, Any]]) -> list[str]:
    return [
        f"{i['name']} = {i['value']}  (from {i['source']}"
        + "".join(f"; {o['source']} says {o['value']}" for o in i["others"])
        + ")"
        for i in inputs
    ]


def _figure(figure: dict[str, Any]) -> str:
    labels = ", ".join(f"{k}={v}" for k, v in figure["labels"].items() if v)
    value = figure["value"]
    shown = f"{value:,.0f}" if value == int(value) and abs(value) < 1e18 else f"{value:.6g}"
    return f"{figure['series']}{' {' + labels + '}' if labels else ''} {shown}"


def _missing(missing: dict[str, Any]) -> str:
    return f"{missing['signal']}: {missing['reason']}" + (
        f" ({missing['detail']})" if missing["detail"] else ""
    )
