"""Which format and which encoding a scraper gets, of those it says it takes."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
# What we speak, by type and version; "" is what a type without a version means.
SPOKEN = {
    (TEXT, ""): "0.0.4",
    (TEXT, "0.0.4"): "0.0.4",
    (TEXT, "1.0.0"): "1.0.0",
    (OPENMETRICS, ""): "1.0.0",
    (OPENMETRICS, "1.0.0"): "1.0.0",
}
ESCAPINGS = frozenset({"allow-utf-8", "underscores", "dots", "values"})


def exposition_type(accept: str) -> str:
    """The format as an ``Accept`` header of one entry that is spelt in one way only: whatever a
    client writes, there are few of them.  The classic format where nothing fits."""
    for name, parameters in _preferred(accept):
        version = SPOKEN.get((name, parameters.get("version", "")))
        if version is None:
            if name in ("*/*", "text/*"):
                break
            continue
        escaping = parameters.get("escaping", "")
        told = f";escaping={escaping}" if escaping in ESCAPINGS and version != "0.0.4" else ""
        return f"{name};version={version}{told}"
    return f"{TEXT};version=0.0.4"


def takes_gzip(request: Request) -> bool:
    """Whether the client takes a gzip body."""
    return any(name in ("gzip", "*") for name, _ in _preferred(request.headers.get("accept-encoding", "")))


def _preferred(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The entries of an ``Accept`` header with their parameters, most wanted first, refused ones left out."""
    entries: list[tuple[float, str, dict[str, str]]] = []
    for entry in header.split(","):
        name, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if name and 0 < quality <= 1:
            entries.append((quality, name, parameters))
    for _, name, parameters in sorted(entries, key=lambda entry: -entry[0]):
        yield name, parameters
