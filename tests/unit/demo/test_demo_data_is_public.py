"""Recorded data is shown to everyone: no request text, no path of the machine it was recorded on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.demo.recording import NAMES, load

RECORDINGS = Path(__file__).parents[2] / "recordings"

# Keys under which engines and their clients carry what a user wrote, or what was answered.
TEXT_KEYS = {"prompt", "prompts", "messages", "input_ids", "request_parameters", "output_text", "completion"}
# Folders of a person's or a build machine; /models and /nonexistent tell nothing.
PRIVATE = re.compile(r"/(?:root|home|work|tmp|opt|mnt|Users|srv)/")


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a JSON value with the key it hangs on."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


@pytest.mark.parametrize("name", NAMES)
def test_demo_pages_hold_metrics_only(name: str) -> None:
    """Labels are where request text could hide: all are short words, and no HELP text was kept."""
    for frame in load(name).frames:
        page = frame.page_text
        helps = re.findall(r"^# HELP \S+ (.*)$", page, re.MULTILINE)
        assert helps
        assert set(helps) == {"-"}
        assert re.findall(r"^#(?! (?:HELP|TYPE) ).*$", page, re.MULTILINE) == []
        values = set(re.findall(r'="([^"]*)"', page))
        assert [value for value in values if len(value) > 32 or " " in value] == []
        assert not PRIVATE.search(page)


@pytest.mark.parametrize("name", NAMES)
def test_demo_endpoints_hold_no_request_and_no_findable_model(name: str) -> None:
    """A model path that exists on the reader's disk would be read in place of the demo's config."""
    found = list(leaves(dict(load(name).endpoints)))
    assert not TEXT_KEYS & {key for key, _ in found}
    texts = [value for _, value in found if isinstance(value, str)]
    assert not [text for text in texts if PRIVATE.search(text)]
    paths = [value for key, value in found if key in {"model", "model_path", "root"} and "/" in str(value)]
    assert paths
    assert all(path.startswith("/nonexistent/") for path in paths)


def test_test_recordings_hold_no_private_path_and_no_help_text() -> None:
    """The same for the pages the contract tests read (their HELP texts are the engines' authors' prose)."""
    files = [path for path in RECORDINGS.rglob("*") if path.suffix in {".prom", ".json", ".txt"}]
    assert len(files) > 100
    for path in files:
        text = path.read_text()
        assert not PRIVATE.search(text), path
        if path.suffix == ".prom" and path.parent.name != "cases":
            assert set(re.findall(r"^# HELP \S+ (.*)$", text, re.MULTILINE)) == {"-"}, path
