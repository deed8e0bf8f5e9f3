"""The family names and releases in the code against the tables of all releases."""

from __future__ import annotations

from exporter.engines import sglang, vllm
from exporter.engines.detect import parse_version

from .releases import SGLANG, VLLM

# Names that the tables do not have, and why we ask for them all the same.
NOT_IN_TABLE = {
    "request_finish",  # NIM's
    "request_success",  # named in code that the tables' search did not see; on every recorded page
}


def asked(families: tuple[str, ...]) -> set[str]:
    """Histograms are in the tables under their family name."""
    return {
        family.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for family in families
        if family not in NOT_IN_TABLE
    }


def test_no_name_is_made_up() -> None:
    """A typo in a name would look like a release without that family."""
    there = {name.removeprefix("vllm:").removesuffix("_total") for name in VLLM}
    assert asked(vllm.FAMILIES) <= there
    there = {name.removeprefix("sglang:").removesuffix("_total") for name in SGLANG}
    assert asked((*sglang.SCHEDULER, *sglang.TOKENIZER, sglang.EVICTED)) <= there


def test_releases_as_they_are_written_in_the_code() -> None:
    """The releases in the code agree with the tables: the first column that has the family, or later
    than the last that lacks it (the tables skip releases)."""
    dated = {**sglang.FIRST_SEEN, **sglang.EVENT_COUNTERS_SINCE}
    for family, first in dated.items():
        row = SGLANG.get(f"sglang:{family}") or SGLANG[f"sglang:{family}_total"]
        having = [parse_version(release) for release, cell in row.items() if cell]
        lacking = [parse_version(release) for release, cell in row.items() if not cell]
        # 0.4.3.post4 is the first column: 0.4.3 for our purposes.
        assert first <= (min(n for n in having if n)), family
        assert all(n < first for n in lacking if n), family
