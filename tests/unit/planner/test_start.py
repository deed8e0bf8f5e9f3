"""A plan is asked for at a prompt, often: it must not wait for what it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tests" / "data" / "kv" / "configs" / "meta-llama__Llama-3.1-8B-Instruct.json"
HEAVY = {"huggingface_hub", "httpx", "uvicorn", "starlette", "yaml", "rich", "prometheus_client", "structlog"}


def test_nothing_heavy_is_imported() -> None:
    """Each of these costs a tenth of a second or more; rich only where tables are drawn."""
    code = (
        f"from exporter.cli import main; main(['plan', {str(CONFIG)!r}, '--output', 'json']);"
        "import sys; print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not HEAVY & set(done.stderr.split())


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    """``plan ... | head -1`` ends quietly."""
    code = f"from exporter.cli import main; import sys; sys.exit(main(['plan', {str(CONFIG)!r}]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()  # before it writes: nobody reads
    _, errors = process.communicate(timeout=60)
    assert errors == b""
    assert process.returncode == 0
