"""Recording over a real socket: what comes out is what went in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.demo import NAMES, load
from exporter.engines import detect
from exporter.recording import (
    Frame,
    Limits,
    NothingRecordedError,
    Recording,
    Summary,
    capture,
    read,
    replayed,
)
from exporter.settings import TargetSettings

FAST = Limits(seconds=60, interval_seconds=0.02)


def record(run: Recording, path: Path, polls: int, *, limits: Limits = FAST, names: bool = False) -> Summary:
    """Record ``run``, whose engine goes on by a frame a poll."""
    name = run.header.software

    async def go() -> Summary:
        stop = asyncio.Event()
        at = 0.0

        def step(_: Summary) -> None:
            nonlocal at, polls
            polls -= 1
            if polls <= 0:
                stop.set()
            times = [frame.at_seconds for frame in run.frames]
            at = next((t for t in times if t > at), at)

        async with replayed({name: run}, lambda: at) as engines:
            target = TargetSettings(
                url=engines[0].url, model_config_path=engines[0].config_path, tensor_parallel_size=1
            )
            return await capture(
                target, path, limits, hub=False, redact_names=names, stop=stop, progress=step
            )

    return asyncio.run(go())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_recorded_reads_as_what_was_played(name: str, tmp_path: Path) -> None:
    """Both engines, ten frames: the same samples page by page, the same endpoints and config."""
    run, path = load(name), tmp_path / "run.gz"
    summary = record(run, path, 10)
    again = read(path)
    assert (summary.pages, len(again.frames), summary.ended) == (10, 10, "stopped")
    assert summary.size_bytes == path.stat().st_size
    for before, after in zip(run.frames[:10], again.frames, strict=True):
        assert after.page_text == before.page_text
        assert detect.samples(detect.read(after.page_text)) == detect.samples(detect.read(before.page_text))
    assert (again.endpoints, again.content_type) == (run.endpoints, run.content_type)
    assert again.header.config == run.header.config
    assert (again.header.config_source, again.header.settings) == ("path", {"tensor_parallel_size": 1})


@pytest.mark.parametrize("name", NAMES)
def test_explain_says_the_same_of_the_recording(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A support engineer must see what the customer saw."""
    path = tmp_path / "run.gz"
    record(load(name), path, 5)
    original = Path(__file__).parents[3] / "exporter" / "demo" / "data" / f"{name}.jsonl.gz"
    at = load(name).frames[4].at_seconds
    told = []
    for words in ([str(original), "--at", str(at)], [str(path)]):
        assert main(["explain", "--output", "json", "--recording", *words]) == 0
        told.append(json.loads(capsys.readouterr().out)["engines"])
    assert len(told[0][0]["figures"]) > 10
    assert [one["figures"] for one in told[0]] == [one["figures"] for one in told[1]]
    assert [one["unavailable"] for one in told[0]] == [one["unavailable"] for one in told[1]]


def test_failed_polls_are_in_the_file(tmp_path: Path) -> None:
    """A gap must not look like an engine that stood still."""
    run = load("vllm")
    bad = Frame(run.frames[2].at_seconds, b"", "timeout")
    run = Recording(run.header, (*run.frames[:2], bad, *run.frames[3:]))
    path = tmp_path / "run.gz"
    summary = record(run, path, 5)
    # Replayed as HTTP 503.
    assert [frame.failure for frame in read(path).frames] == ["", "", "http_5xx", "", ""]
    assert (summary.pages, summary.failures.total()) == (4, 1)


def test_no_engine_no_file(tmp_path: Path) -> None:
    """Nothing is created, and nothing replaced, until there is something to write."""
    path = tmp_path / "run.gz"
    target = TargetSettings(url="http://127.0.0.1:1")
    with pytest.raises(NothingRecordedError, match=r"127\.0\.0\.1:1"):
        asyncio.run(capture(target, path, Limits(seconds=0.05, interval_seconds=0.02)))
    assert not path.exists()
    words = ["--target", target.url, "--out", str(path), "--duration", "0.05", "--interval", "0.02"]
    assert main(["record", *words]) == 1
    path.write_text("yesterday's")
    assert main(["record", *words]) == 2
    assert path.read_text() == "yesterday's"


def test_names_on_request(tmp_path: Path) -> None:
    """Model and routes are gone from the whole file, and the engine is still read."""
    path = tmp_path / "run.gz"
    record(load("sglang"), path, 2, names=True)
    run = read(path)
    text = run.frames[0].page_text + json.dumps(dict(run.endpoints))
    assert "tiny-llama" not in text
    assert 'route="shared"' not in text
    served = run.endpoints["/model_info"]["served_model_name"]
    # The directory and the served name differ, so they are two names.
    assert served in {"model-1", "model-2"}
    assert {s.model_name for s in detect.samples(detect.read(run.frames[0].page_text))} == {served}
