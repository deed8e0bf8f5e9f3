"""The Prometheus with the recorded afternoon, once for all tests: it takes half a minute to fill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.alerts.stand import Prometheus

from .stand import afternoon


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with afternoon(tmp_path_factory.mktemp("grafana")) as ready:
        yield ready
