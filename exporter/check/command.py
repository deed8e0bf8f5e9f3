"""The command: examine, print, and an exit code for CI."""

from __future__ import annotations

import asyncio
import json

from exporter.check.examine import examine
from exporter.check.report import as_dict
from exporter.check.text import as_text
from exporter.settings import CheckSettings


def run(settings: CheckSettings) -> int:
    """0 fine, 1 problems: the page can't be read, or the arithmetic is contradicted.  (Bad usage is 2.)"""
    report = asyncio.run(examine(settings))
    if settings.output == "json":
        print(json.dumps(as_dict(report), indent=1))
    else:
        print(as_text(report), end="")
    return report.exit_code(strict=settings.strict)
