"""The chart, assembled once, as users get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import helm_python as helm
import pytest

from deploy.helm.assemble import assemble


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dist/kvcache-exporter-VERSION.tgz as `make chart` makes it."""
    return assemble(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def chart(archive: Path) -> Iterator[helm.Chart]:
    """The same, read by Helm."""
    with helm.Chart.load(archive) as loaded:
        yield loaded
