"""CPU time of ``plan``: a cold process, and every recorded config in one process.

    python tests/bench/plan_speed.py [--quick]

The aim: at most 0.5 s beyond Python's own start, at most 1 s for all configs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "tests" / "data" / "kv" / "configs"
ROUNDS = 2 if "--quick" in sys.argv else 8


def child_seconds(code: str) -> float:
    """User and system time of one Python process, the least of a few."""
    seconds = []
    for _ in range(ROUNDS):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        after = os.times()
        seconds.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return min(seconds)


def cold_seconds(output: str) -> float:
    """One plan in a process of its own."""
    path = CONFIGS / "meta-llama__Llama-3.1-70B-Instruct.json"
    return child_seconds(
        f"from exporter.cli import main; main(['plan', {str(path)!r}, '--output', {output!r}])"
    )


def warm_seconds(files: list[Path]) -> float:
    """A plan of every file, one after the other, the least of a few."""
    from exporter.cli import main

    seconds = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for _ in range(ROUNDS):
            start = time.process_time()
            for file in files:
                main(["plan", str(file), "--output", "json"])
            seconds.append(time.process_time() - start)
    return min(seconds)


def run() -> None:
    """Measure and print."""
    files = sorted(CONFIGS.glob("*.json"))
    bare = child_seconds("pass")
    figures = {
        "python_start_seconds": bare,
        "json_seconds_beyond_start": cold_seconds("json") - bare,
        "text_seconds_beyond_start": cold_seconds("text") - bare,
        "configs": len(files),
        "all_configs_seconds": warm_seconds(files),
    }
    for name, value in figures.items():
        print(f"{name:30} {value:.3f}" if isinstance(value, float) else f"{name:30} {value}")
    told = {"name": "plan_speed", "cpu": platform.processor(), "python": platform.python_version()}
    print(json.dumps({**told, "figures": {name: round(value, 4) for name, value in figures.items()}}))


if __name__ == "__main__":
    run()
