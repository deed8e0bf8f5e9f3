"""Capacity figures with hand sums."""

import math

import pytest

from exporter.kvmath.capacity import concurrency, max_model_len_from, sequences_that_fit, used_blocks
from exporter.kvmath.known import Reason, Unavailable


def test_max_model_len_from_labels_seen_on_engines() -> None:
    """2.34375 x 4,096 = 9,600 exactly; 3.3930... x 4,096 = 13,897.86, cut to 13,897."""
    assert max_model_len_from(9600, 2.34375) == 4096
    assert max_model_len_from(13897, 3.3930348258706466) == 4096


@pytest.mark.parametrize(
    ("size", "ratio", "reason"),
    [
        (
            290864,
            33.04,
            Reason.CONTRADICTION,
        ),  # a log line's rounded figure: 8,803 gives 290,851, 8,804 290,884
        (1000, 0.25, Reason.MAX_MODEL_LEN),  # 4,000 to 4,003 all give 1,000
        (1000, 0.0, Reason.MAX_MODEL_LEN),
        (1000, math.nan, Reason.MAX_MODEL_LEN),
        (1000, math.inf, Reason.MAX_MODEL_LEN),
        (0, 2.0, Reason.MAX_MODEL_LEN),
        (1000, 1e-300, Reason.OUT_OF_RANGE),
        (1000, 5e-324, Reason.OUT_OF_RANGE),
    ],
)
def test_max_model_len_is_withheld_unless_it_is_the_only_one(size: int, ratio: float, reason: Reason) -> None:
    """A guess here would go into every figure per sequence."""
    found = max_model_len_from(size, ratio)
    assert isinstance(found, Unavailable)
    assert found.reason is reason


def test_used_blocks_of_a_recorded_page() -> None:
    """0.038179... of 681 usable blocks are 26 (recorded: 26 referenced blocks of 682)."""
    assert used_blocks(26 / 681, 681) == 26
    assert used_blocks(0.0, 681) == 0
    assert used_blocks(1.0, 681) == 681


def test_whole_sequences_only() -> None:
    """681 usable blocks, 137 per sequence: 4 fit (548), a fifth would need 685."""
    assert sequences_that_fit(681, 137) == 4
    assert concurrency(682, 201) == 3.3930348258706466  # the engine's own label for that pool
