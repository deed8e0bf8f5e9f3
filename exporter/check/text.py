"""A report for somebody in a hurry: what is wrong first, then what would help, then the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from exporter.check.report import Advice, Report, Weight, Where
from exporter.printable import printable

WIDTH = 110
ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
HEADINGS = {
    Weight.PROBLEM: "Problems",
    Weight.BETTER: "Would tell more",
    Weight.OPTIONAL: "Optional",
}


def as_text(report: Report) -> str:
    """The report as a page of text."""
    return "\n".join(map(printable, _lines(report))) + "\n"


def _lines(report: Report) -> Iterator[str]:
    who = " ".join(part for part in (ENGINES.get(report.engine, ""), report.version) if part)
    if report.failure:
        yield f"{report.target}: NOT READ ({report.failure}: {report.failure_detail})"
        if who:
            yield f"engine      {who}, as its other endpoints say"
    else:
        names = ", ".join(report.model_names)
        yield (
            f"{report.target}: {who or 'an engine that does not tell its release'}"
            + (f", serving {names}" if names else "")
            + (f", {report.ranks} ranks" if report.ranks > 1 else "")
        )
        yield from _findings(report)
    for weight, heading in HEADINGS.items():
        chosen = [advice for advice in report.advice if advice.weight is weight]
        if chosen:
            yield from ("", f"{heading}:")
            for advice in chosen:
                yield from _advice(advice)
    missing = [s for s in report.signals if not s.available]
    if missing:
        yield from ("", "Missing:")
        for reason in dict.fromkeys(s.reason for s in missing):
            names = ", ".join(s.name for s in missing if s.reason == reason)
            yield from textwrap.wrap(
                f"{reason}: {names}", WIDTH, initial_indent="  ", subsequent_indent="    "
            )


def _findings(report: Report) -> Iterator[str]:
    config, scrape = report.model_config, report.scrape
    if config is not None:
        yield "config.json " + (
            f"{config.location} ({config.source})" if config.found else f"NOT USABLE: {config.problem}"
        )
    if report.arithmetic_ratio is None:
        yield "arithmetic  not compared: " + next(
            (s.detail or s.reason for s in report.signals if s.name == "kvcache_arithmetic_ratio"), "unknown"
        )
    else:
        verdict = "agrees with" if report.arithmetic_agrees else "CONTRADICTS"
        yield f"arithmetic  {verdict} the engine's own figure (ours / its = {report.arithmetic_ratio:.4g})"
    yield f"signals     {sum(s.available for s in report.signals)} of {len(report.signals)} available"
    if scrape is not None:
        yield (
            f"scrape      {scrape.bytes:,} bytes in {scrape.seconds:.3g} s, {scrape.share:.1%} of a poll "
            f"every {scrape.poll_interval_seconds:g} s" + (": HEAVY" if scrape.heavy else "")
        )
    if report.assumed:
        yield f"assumed     {', '.join(report.assumed)}: nobody says, so the engine's default is taken"


def _advice(advice: Advice) -> Iterator[str]:
    # A flag is for copying: it is never broken.
    command = " ".join(part for part in (advice.environment, advice.flag) if part)
    if command:
        yield f"  {'exporter' if advice.where is Where.EXPORTER else 'engine'}: {command}"
    why = advice.why + (f" Unlocks {', '.join(advice.unlocks)}." if advice.unlocks else "")
    indent = "      " if command else "  "
    yield from textwrap.wrap(
        why, WIDTH, initial_indent=indent, subsequent_indent="      ", break_long_words=False
    )
