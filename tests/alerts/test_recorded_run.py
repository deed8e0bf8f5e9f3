"""Without an engine: a recorded run, and the alert fires when the recording says it must."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from alerts.rules import groups
from exporter.recording.replay import write_model
from tests.integration.running import Program
from tests.rig.waiting import wait_for

from .promtool import SCRAPE, needed, needs
from .recorded import RECORDING, Tape, recorded_engine, recorded_usage
from .stand import Prometheus

ALERT = "KVCacheUsageHigh"
# Seconds of the recording that the alert has to wait. Its time above the threshold comes in pieces of 1 to 3
# and of 5 to 7 seconds, so none of them is about that long.
HOLD_S = 4.0


def _rules(hold_s: float) -> list[Any]:
    """The alert alone, waiting so many seconds and no longer firing than its condition holds."""
    rules = needed(groups(), {ALERT})
    for rule in rules[-1]["rules"]:
        rule["for"] = f"{hold_s:g}s"
        del rule["keep_firing_for"]
    return rules


def test_promtool_fires_in_the_seconds_that_the_recording_implies(tmp_path: Path) -> None:
    """The recorded run, second by second, without an engine: the alert fires where the recording says so.

    Expected by walking the recorded usage: above the threshold for some seconds on end. The promtool run sees
    the gauge as a scrape every second would, frames held until the next one.
    """
    frames = recorded_usage()
    seconds = range(int(frames[-1][0]) + 1)
    usage = [next(u for t, u in reversed(frames) if t <= second) for second in seconds]
    expected, above_since = [], None
    for second in seconds:
        above_since = None if usage[second] <= 0.85 else second if above_since is None else above_since
        expected.append(above_since is not None and second - above_since >= HOLD_S)
    # Not all or nothing: else any rule would do.
    assert 3 <= sum(expected) <= len(expected) - 3

    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": _rules(HOLD_S)}, width=1000))
    labels = ",".join(f'{k}="{v}"' for k, v in {**SCRAPE, "target": "a"}.items())
    firing = f'count(ALERTS{{alertname="{ALERT}",alertstate="firing"}})'
    test = {
        "interval": "1s",
        "input_series": [
            {"series": f"kvcache_usage_ratio{{{labels}}}", "values": " ".join(f"{u!r}" for u in usage)}
        ],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{second}s",
                "exp_samples": [{"labels": "{}", "value": 1}] if expected[second] else [],
            }
            for second in seconds
        ],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [needs("promtool"), "test", "rules", str(tmp_path / "test.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# A part of the tape, from one frame below the threshold to another, played so slowly that its shortest dip
# (0.8 s) is longer than what a look may be late.
SINCE_S, UNTIL_S, SLOWER = 5.5, 21.5, 4.5
POLL_S, SCRAPE_S = 0.1, 1.0
# What a frame shows is in an evaluation after a poll, a scrape and an evaluation at the latest; that `for` is
# over is noticed by the evaluation after it. Neither is earlier than the frame.
SEEN_S = POLL_S + 2 * SCRAPE_S
NOTICED_S = SEEN_S + SCRAPE_S


def _above() -> list[tuple[float, float]]:
    """Pieces of the part, in seconds since it began to be played, during which usage is above 85 %."""
    pieces: list[tuple[float, float]] = []
    since = None
    for at, usage in recorded_usage():
        if not SINCE_S < at < UNTIL_S:
            continue
        now = (at - SINCE_S) * SLOWER
        if usage > 0.85 and since is None:
            since = now
        elif usage <= 0.85 and since is not None:
            pieces.append((since, now))
            since = None
    assert since is None
    return pieces


def _runs(evaluations: list[float], firing: set[float]) -> list[tuple[float, float]]:
    """(first evaluation that fires, first one after it that does not) of each run of firing evaluations."""
    runs: list[tuple[float, float]] = []
    start = None
    for at in evaluations:
        if at in firing and start is None:
            start = at
        elif at not in firing and start is not None:
            runs.append((start, at))
            start = None
    return runs


def test_prometheus_fires_when_the_recording_implies(tmp_path: Path) -> None:
    """The whole chain but the engine: recorded pages, the real exporter, a real Prometheus, in real time."""
    needs("prometheus")
    hold = HOLD_S * SLOWER
    expected = [(since + hold, until) for since, until in _above() if until - since > hold]
    # Some pieces are long enough and some are not, and none is near enough to `for` to be a matter of luck.
    assert 0 < len(expected) < len(_above())
    assert all(abs(until - since - hold) > NOTICED_S for since, until in _above())

    rules = _rules(hold)
    # When it was evaluated, so that a run's ends are evaluations and no guesses.
    rules[-1]["rules"].append({"record": "test:evaluated", "expr": "vector(1)"})
    for group in rules:
        group["interval"] = f"{SCRAPE_S:g}s"
    last = max((at, usage) for at, usage in recorded_usage() if at < UNTIL_S)[1]
    tape = Tape()
    with recorded_engine(tape) as url:
        tape.wind(SINCE_S)
        settings = [*Program.targets({"vllm-a": url}, tmp_path), "--poll-interval", f"{POLL_S:g}"]
        config = ["--model-config", str(write_model(RECORDING, tmp_path / "model"))]
        with (
            Program(tmp_path / "exporter.log", *settings, *config, unstretched=True) as exporter,
            Prometheus(rules, tmp_path, [exporter.listen]) as prometheus,
        ):
            prometheus.wait_ready()
            prometheus.wait_for(lambda: bool(prometheus.query("kvcache_usage_ratio")), "the first frame")
            assert prometheus.state(ALERT) == "inactive"
            began = tape.play(SLOWER, UNTIL_S)
            over = f"abs(kvcache_usage_ratio - {last!r}) < 0.001"
            wait_for(
                lambda: tape() == UNTIL_S and bool(prometheus.query(over)),
                (UNTIL_S - SINCE_S) * SLOWER + 60,
                "the last frame",
            )
            prometheus.wait_state(ALERT, "inactive")

            def times(selector: str) -> list[float]:
                found = prometheus.query(f"{selector}[5m]")
                return sorted(float(at) - began for one in found for at, _ in one["values"])

            firing = set(times(f'ALERTS{{alertname="{ALERT}",alertstate="firing"}}'))
            seen = _runs(times("test:evaluated"), firing)

    assert len(seen) == len(expected), (seen, expected)
    for (fired, ended), (due, until) in zip(seen, expected, strict=True):
        assert due <= fired <= due + NOTICED_S, (seen, expected)
        assert until <= ended <= until + SEEN_S, (seen, expected)
