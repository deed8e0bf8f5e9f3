"""Reading a recording that anybody may have sent: everything has a limit."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from exporter.recording.format import FORMAT, VERSION, Frame, Header, Recording, RecordingError
from exporter.sources.files import UnreadableError, read_bounded

MAX_FILE_BYTES = 256 * 2**20
# A page of 8 MiB, which is the largest recorded, every character escaped.
MAX_LINE_BYTES = 64 * 2**20
MAX_TEXT_BYTES = 4 * 2**30
MAX_FRAMES = 200_000
_STEP = 2**16


def read(path: Path) -> Recording:
    """The recording in ``path``.

    A file that ends early (the recorder was killed, the disk was full) is read up
    to its last whole line.  Raises :class:`RecordingError`, one line that names
    the file, where it is none, is damaged or is larger than any recording.
    """
    try:
        content = read_bounded(path, MAX_FILE_BYTES)
    except UnreadableError as error:
        raise RecordingError(str(error)) from None
    try:
        return _parse(content)
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from None


def _parse(content: bytes) -> Recording:
    lines = _Lines(content)
    header: Header | None = None
    frames: list[Frame] = []
    for number, line in enumerate(lines, 1):
        row = _row(line, number)
        if header is None:
            header = _header(row)
            continue
        if len(frames) >= MAX_FRAMES:
            raise RecordingError(f"more than {MAX_FRAMES:,} pages")
        frame = _frame(row, number)
        if frames and frame.at_seconds <= frames[-1].at_seconds:
            raise RecordingError(f"line {number}: its time is not later than the line before")
        frames.append(frame)
    if header is None or not frames:
        raise RecordingError("ends before its first page")
    return Recording(header, tuple(frames), cut=lines.cut)


class _Lines:
    """The lines of a gzip file of any number of members; ``cut`` is set once they end too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.cut = False

    def __iter__(self) -> Iterator[bytes]:
        line = bytearray()
        total = 0
        for piece in self._pieces():
            total += len(piece)
            *ended, rest = piece.split(b"\n")
            for part in ended:
                yield bytes(line) + part
                line.clear()
            line += rest
            if len(line) > MAX_LINE_BYTES or total > MAX_TEXT_BYTES:
                raise RecordingError("inflates to more than a recording can hold")
        self.cut = self.cut or bool(line)

    def _pieces(self) -> Iterator[bytes]:
        content, at = self._content, 0
        if not content:
            raise RecordingError("empty")
        for _ in range(2 * MAX_FRAMES):
            # A disk that went down mid-write leaves zeros.
            if at >= len(content) or not content[at : at + _STEP].strip(b"\0"):
                self.cut = at < len(content)
                return
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            while not member.eof:
                piece = member.unconsumed_tail
                if not piece:
                    piece = content[at : at + _STEP]
                    at += len(piece)
                try:
                    text = member.decompress(piece, _STEP)
                except zlib.error:
                    raise RecordingError("not gzip, or damaged") from None
                if not piece and not text and not member.eof:
                    self.cut = True
                    return
                yield text
            at -= len(member.unused_data)
        raise RecordingError("more gzip members than a recording can hold")


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise RecordingError(f"line {number}: not JSON") from None
    if not isinstance(row, dict):
        raise RecordingError(f"line {number}: not a JSON object")
    return row


def _no_constant(name: str) -> None:
    # Python reads NaN and Infinity, which are no JSON and could not be served again.
    raise ValueError(name)


def _header(row: dict[str, Any]) -> Header:
    if row.get("format") != FORMAT:
        raise RecordingError("not a recording of this exporter (the first line does not say so)")
    if row.get("version") != VERSION:
        raise RecordingError(f"of format version {row.get('version')!r:.40}, this exporter reads {VERSION}")
    try:
        return Header.model_validate(row)
    except (ValidationError, RecursionError) as error:
        named = error.errors()[0] if isinstance(error, ValidationError) else None
        where = ".".join(str(part)[:80] for part in named["loc"]) if named else "nested too deeply"
        raise RecordingError(f"line 1: bad header: {where}") from None


def _frame(row: dict[str, Any], number: int) -> Frame:
    at, page, failure = _seconds(row.get("t")), row.get("metrics"), row.get("failure")
    if at is None:
        raise RecordingError(f"line {number}: t is not a number of seconds")
    if isinstance(failure, str) and 0 < len(failure) <= 40 and failure.isascii() and failure.isprintable():
        return Frame(at, b"", failure)
    if not isinstance(page, str):
        raise RecordingError(f"line {number}: neither a page nor a failure")
    try:
        return Frame.of(at, page)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can hold
        raise RecordingError(f"line {number}: its page is no text") from None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:  # JSON's whole numbers have no end
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
