"""Options common to all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# On CI the same examples every time, so that a failure there is the change's; elsewhere new ones, which is
# how a wrong property is found.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--golden-update``: write the expected files anew instead of comparing with them."""
    parser.addoption(
        "--golden-update", action="store_true", help="write the files that golden tests compare with anew"
    )


@pytest.fixture
def golden_update(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be written instead of compared."""
    return bool(request.config.getoption("--golden-update"))
