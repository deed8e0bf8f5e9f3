"""Files that anybody may send: whole up to where they were cut, else one clear line."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.recording import Header, RecordingError, read
from exporter.recording.writer import Writer

HEADER = Header(exporter="1", software="vllm", recorded_at="now", interval_seconds=1)
FIRST = json.dumps(HEADER.model_dump(mode="json"))
PAGE = '{"t": 0, "metrics": "x 1\\n"}'


def write(path: Path, *lines: str) -> Path:
    path.write_bytes(b"".join(gzip.compress(line.encode() + b"\n") for line in lines))
    return path


def written(path: Path, pages: int, max_bytes: int = 2**20) -> int:
    """Pages that found room."""
    with Writer(path, HEADER, max_bytes=max_bytes) as writer:
        return [writer.page(float(n), f"x {n}\n") for n in range(pages)].count(True)


def test_cut_anywhere_it_is_whole_up_to_the_last_line(tmp_path: Path) -> None:
    """A killed recorder, a full disk, a broken download: every length of the file is tried."""
    whole = tmp_path / "whole"
    written(whole, 3)
    content = whole.read_bytes()
    seen = set()
    for length in range(len(content) + 1):
        path = tmp_path / "cut"
        path.write_bytes(content[:length])
        try:
            run = read(path)
        except RecordingError:
            seen.add(0)
            continue
        seen.add(len(run.frames))
        assert [frame.page_text for frame in run.frames] == [f"x {n}\n" for n in range(len(run.frames))]
        # Text may be out before its member's check sum is: then all pages are there, and the file still cut.
        assert run.cut or length == len(content) or len(run.frames) < 3
    assert seen == {0, 1, 2, 3}
    whole.write_bytes(content + bytes(100))
    assert (len(read(whole).frames), read(whole).cut) == (3, True)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['{"t": 0, "metrics": ""}'], "not a recording"),
        ([FIRST.replace('"version": 1', '"version": 2'), PAGE], "format version 2"),
        ([FIRST.replace('"vllm"', '"tgi"'), PAGE], "bad header: software"),
        ([FIRST], "before its first page"),
        ([FIRST, "{"], "line 2: not JSON"),
        ([FIRST, "[" * 100_000], "line 2: not JSON"),
        ([FIRST, "[]"], "line 2: not a JSON object"),
        ([FIRST, '{"t": "0", "metrics": ""}'], "line 2: t is not"),
        ([FIRST, '{"t": 1' + "0" * 400 + ', "metrics": ""}'], "line 2: t is not"),
        ([FIRST, '{"t": NaN, "metrics": ""}'], "line 2: not JSON"),
        ([FIRST, '{"t": 0}'], "line 2: neither"),
        ([FIRST, '{"t": 0, "metrics": "\\ud800"}'], "line 2: its page is no text"),
        ([FIRST, '{"t": 1, "metrics": ""}'], "first page"),
        ([FIRST, '{"t": 0, "failure": "timeout"}'], "first page"),
        ([FIRST, PAGE, PAGE], "line 3: its time"),
    ],
)
def test_bad_files_are_named_and_refused(
    lines: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line, not a traceback."""
    path = write(tmp_path / "bad.gz", *lines)
    with pytest.raises(RecordingError, match=why):
        read(path)
    assert main(["explain", "--recording", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(path) in told


def test_no_gzip_no_file_and_a_bomb(tmp_path: Path) -> None:
    """100 MB of zeros in 100 kB: refused at the line's limit, not in memory."""
    path = tmp_path / "bad"
    for content in (b"", b"text", gzip.compress(FIRST.encode() + b"\n") + b"garbage"):
        path.write_bytes(content)
        with pytest.raises(RecordingError):
            read(path)
    with pytest.raises(RecordingError, match="no such file"):
        read(tmp_path / "none")
    bomb = zlib.compressobj(9, wbits=31)
    zeros = bytes(2**20)
    path.write_bytes(b"".join(bomb.compress(zeros) for _ in range(100)) + bomb.flush())
    with pytest.raises(RecordingError, match="more than a recording can hold"):
        read(path)


def test_settings_of_a_stranger_reach_no_file(tmp_path: Path) -> None:
    """A recording may say a parallelism; a path, a URL or a name would be somebody's lever."""
    settings = {
        "tensor_parallel_size": 2,
        "model_config_path": "/etc/passwd",
        "url": "http://x",
        "route": "r",
    }
    target = HEADER.model_copy(update={"settings": settings}).target("http://h:1", "n")
    assert (target.tensor_parallel_size, target.model_config_path, target.url) == (2, None, "http://h:1")
    with pytest.raises(RecordingError, match="tensor_parallel_size"):
        HEADER.model_copy(update={"settings": {"tensor_parallel_size": "x"}}).target("http://h:1", "n")


def test_the_file_stays_below_its_limit_and_is_not_overwritten(tmp_path: Path) -> None:
    """A recorder left running must not fill the disk, nor yesterday's run vanish."""
    path = tmp_path / "run"
    most = 600
    added = written(path, 100, max_bytes=most)
    assert 0 < added < 100
    assert path.stat().st_size <= most
    assert len(read(path).frames) == added
    with pytest.raises(FileExistsError):
        written(path, 1)
    with Writer(path, HEADER, max_bytes=most, force=True) as writer:
        writer.page(0, "new\n")
    assert read(path).frames[0].page_text == "new\n"
