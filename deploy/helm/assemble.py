"""``python -m deploy.helm.assemble``: the chart with rules and dashboards in it, as an archive.

Helm reads nothing outside a chart's folder, and a second copy of the rules in the tree would go stale. So the
chart's source has none, and the archive that is installed is put together here.  Symbolic links would do for
`helm install FOLDER`, but not on every file system, nor in an archive from a forge.
"""

from __future__ import annotations

import argparse
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = Path(__file__).parent / "kvcache-exporter"
RULES: Final = ROOT / "alerts" / "rules" / "kvcache.rules.yaml"
DASHBOARDS: Final = ROOT / "grafana" / "dashboards"
_UNWANTED: Final = ("__pycache__", ".pyc")


def contents() -> dict[str, bytes]:
    """Path inside the chart -> what lies there."""
    made = {
        path.relative_to(CHART).as_posix(): path.read_bytes()
        for path in CHART.rglob("*")
        if path.is_file() and not any(word in str(path) for word in _UNWANTED)
    }
    made["files/rules.yaml"] = RULES.read_bytes()
    for board in DASHBOARDS.glob("*.json"):
        made[f"files/dashboards/{board.name}"] = board.read_bytes()
    return dict(sorted(made.items()))


def assemble(folder: Path) -> Path:
    """Write ``NAME-VERSION.tgz`` under ``folder``; the same content gives the same bytes inside."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{about['name']}-{about['version']}.tgz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for path, data in contents().items():
            entry = tarfile.TarInfo(f"{about['name']}/{path}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return archive


def main(words: Sequence[str] | None = None) -> int:
    """Write the archive and say where it is."""
    parser = argparse.ArgumentParser(prog="python -m deploy.helm.assemble")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    print(assemble(parser.parse_args(words).folder))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
