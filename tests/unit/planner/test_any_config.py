"""Whatever JSON a config holds, a plan is an answer or one line, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kvmath.model import read_model
from exporter.planner.answer import answer
from exporter.planner.checkpoint import Checkpoint, default_in_flight, weights_of
from exporter.planner.output import as_json
from exporter.planner.page import as_text
from exporter.planner.question import question
from exporter.planner.settings import PlanSettings

CONFIGS = [
    json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[2] / "data" / "kv" / "configs").glob("*.json"))
]
FIELDS = sorted({name for config in CONFIGS for name in config})
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.integers(0, 300)
    | st.floats(allow_nan=True)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ASKED = question(
    PlanSettings(config=Path("config.json"), sequences=64, context=[1, 8192, 131072], shared_prefix=1000)
)


@given(
    config=st.sampled_from(CONFIGS),
    changes=st.dictionaries(st.sampled_from(FIELDS), junk, max_size=4),
    nested=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_changed_fields(config: dict[str, Any], changes: dict[str, Any], nested: bool) -> None:
    """Real configs with a few fields replaced, in the outer or the inner config."""
    inner = config.get("text_config")
    if nested and isinstance(inner, dict):
        changed = {**config, "text_config": {**inner, **changes}}
    else:
        changed = {**config, **changes}
    told(changed)


@given(config=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), junk, max_size=8))
@settings(max_examples=100, deadline=None)
def test_no_config_at_all(config: dict[str, Any]) -> None:
    """Objects that were never a config."""
    told(config)


def told(config: dict[str, Any]) -> None:
    weights = weights_of(Checkpoint(config, Path("config.json"), None), None, None)
    assert default_in_flight(config) >= 4096
    found = answer(ASKED, read_model(config), weights)
    loaded = json.loads(as_json(found))  # no NaN, no infinity
    assert ("bytes_per_token" in loaded) != any(
        e["signal"] == "bytes_per_token" for e in loaded["unavailable"]
    )
    assert as_text(found, "config.json").startswith("Model")
