"""Hub caches and /proc trees on disk, for the tests of the sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

CONFIG = {"model_type": "llama", "num_hidden_layers": 2}
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's own hub cache must neither help nor be written to."""
    cache = tmp_path / "own-hub-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return cache


class HubCache:
    """A cache directory as huggingface_hub lays it out: blobs, snapshots that link to them, refs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, repo_id: str, content: str | None, *, revision: str = REVISION, ref: str = "main") -> Path:
        """A repo with one snapshot; ``content`` None is a snapshot without config.json."""
        repo = self.root / ("models--" + repo_id.replace("/", "--"))
        snapshot = repo / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / ref).write_text(revision)
        if content is not None:
            (repo / "blobs").mkdir()
            (repo / "blobs" / "b10b").write_text(content)
            (snapshot / "config.json").symlink_to("../../blobs/b10b")
        return snapshot


@pytest.fixture
def hub_cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub-cache")


class FakeHub:
    """Just enough of a hub: HEAD and GET of config.json, or one refusal for all."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None]] = []  # method, path, authorization
        self.status = 200
        self.error_code: str | None = None
        self.body = json.dumps(CONFIG).encode()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                hub.requests.append((self.command, self.path, self.headers.get("Authorization")))
                self.send_response(hub.status)
                self.send_header("X-Repo-Commit", REVISION)
                self.send_header("ETag", '"b10b"')
                if hub.error_code:
                    self.send_header("X-Error-Code", hub.error_code)
                self.send_header("Content-Length", str(len(hub.body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(hub.body)

            do_GET = do_HEAD = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    thread = Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


class FakeProc:
    """A /proc tree: processes, their descriptors, the tables of listening sockets."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def process(
        self,
        pid: int,
        argv: Sequence[str | bytes],
        *,
        parent: int = 1,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        sockets: Sequence[int] = (),
        network: str | None = None,
    ) -> None:
        here = self.root / str(pid)
        (here / "fd").mkdir(parents=True)
        words = [word if isinstance(word, bytes) else word.encode() for word in argv]
        (here / "cmdline").write_bytes(b"".join(word + b"\0" for word in words))
        (here / "status").write_text(f"Name:\tx\nPid:\t{pid}\nPPid:\t{parent}\n")
        if environment is not None:
            (here / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in environment.items()))
        if cwd is not None:
            (here / "cwd").symlink_to(cwd)
        (here / "fd" / "0").symlink_to("/dev/null")
        for number, inode in enumerate(sockets, start=3):
            (here / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        if network is not None:
            (here / "ns").mkdir()
            (here / "ns" / "net").symlink_to(network)

    def own_network(self, network: str) -> None:
        (self.root / "self" / "ns").mkdir(parents=True)
        (self.root / "self" / "ns" / "net").symlink_to(network)

    def table(self, name: str, rows: Sequence[tuple[str, str, int]]) -> None:
        """Rows are (address:port in hex, state in hex, inode), as the kernel prints them."""
        zeros = "00000000:00000000 00:00000000 00000000     0        0"
        lines = [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
        ]
        lines += [
            f"   {i}: {local} 00000000:0000 {state} {zeros} {inode} 1"
            for i, (local, state, inode) in enumerate(rows)
        ]
        (self.root / "net").mkdir(exist_ok=True)
        (self.root / "net" / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def fake_proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")
