"""``plan``: from the command line to a page or a JSON object."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.model import read_model
from exporter.planner.answer import answer
from exporter.planner.checkpoint import default_in_flight, read_checkpoint, weights_of
from exporter.planner.output import as_json
from exporter.planner.page import as_text
from exporter.planner.question import question
from exporter.planner.settings import PlanSettings


def run(settings: PlanSettings) -> int:
    """Print the plan; 0 also where figures are unavailable, for the answer says so, unless ``strict``:
    then 1 where the sequences don't fit, or nobody can tell.

    Raises ``ValueError``, one line, for a CONFIG or a setting that makes no sense.
    """
    asked = question(settings)
    checkpoint = read_checkpoint(settings.config)
    shape = read_model(checkpoint.config)
    if isinstance(shape, Unavailable) and shape.reason is Reason.BAD_MODEL_CONFIG:
        raise ValueError(f"{checkpoint.location}: {shape.detail}")
    asked = replace(asked, in_flight_tokens=asked.in_flight_tokens or default_in_flight(checkpoint.config))
    weights = weights_of(checkpoint, settings.weights_gb, settings.weights_dtype)
    if isinstance(weights, Unavailable) and weights.reason is Reason.BAD_MODEL_CONFIG:
        raise ValueError(f"{checkpoint.location}: {weights.detail}")
    found = answer(asked, shape, weights)
    _print(as_json(found) + "\n" if settings.output == "json" else as_text(found, str(checkpoint.location)))
    if not known(shape):
        print(f"kvcache-exporter plan: {checkpoint.location}: {shape.detail}", file=sys.stderr)
    return int(settings.strict and found.fits is not True)


def _print(page: str) -> None:
    try:
        sys.stdout.write(page)
        sys.stdout.flush()
    except BrokenPipeError:
        # A pager or head that has seen enough; the interpreter would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
