"""Options common to all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--golden-update``: write the expected files anew instead of comparing with them."""
    parser.addoption(
        "--golden-update", action="store_true", help="write the files that golden tests compare with anew"
    )


@pytest.fixture
def golden_update(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be written instead of compared."""
    return bool(request.config.getoption("--golden-update"))
