"""Which engine a page is from, and its samples."""

from __future__ import annotations

import re

from exporter.engines import sglang, vllm
from exporter.engines.exposition import Page, read_page
from exporter.engines.sample import EngineSample

# Order of trust: prefixed names first, NIM's bare ones only where nothing else fits.
VOCABULARIES = (vllm.VOCABULARY, sglang.VOCABULARY)


def read(text: str) -> Page:
    """The page's samples of interest; ``software`` is "" where it is no engine's."""
    page = read_page(text, VOCABULARIES)
    if page.software:
        return page
    bare = read_page(text, (vllm.BARE_VOCABULARY,))
    # One generic counter is no engine; a KV usage gauge is.
    return bare if any(bare.get(name) for name in vllm.USAGE) else page


def samples(page: Page, version: str | None = None) -> tuple[EngineSample, ...]:
    """The ranks on ``page``; ``version`` as an info endpoint told it."""
    release = parse_version(version)
    if page.software == "sglang":
        return sglang.read(page, release)
    return vllm.read(page, release) if page.software == "vllm" else ()


def parse_version(version: str | None) -> tuple[int, ...] | None:
    """``"0.9.2rc1+cu126"`` -> ``(0, 9, 2)``; ``None`` where it is no release
    (a development build says ``0.1.dev1+g...``)."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?!\d)", version or "")
    return tuple(int(part) for part in match.groups()) if match else None
