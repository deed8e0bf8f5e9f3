"""The engine's process, found in a fake /proc and once in the real one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from exporter.sources import find_engine
from exporter.sources.command_line import find_engine_at
from exporter.sources.sockets import listening_inodes, local_addresses, unix_inodes

from .conftest import FakeProc

# 127.0.0.1:8000, 0.0.0.0:8000, [::1]:8000, [::]:8000 as the kernel of a little-endian machine prints them
V4, V4_ALL = "0100007F:1F40", "00000000:1F40"
V6, V6_ALL = "00000000000000000000000001000000:1F40", f"{'0' * 32}:1F40"
MAPPED = "0000000000000000FFFF00000100007F:1F40"  # ::ffff:127.0.0.1
LISTEN, ESTABLISHED = "0A", "01"
VLLM = ("python3", "/usr/bin/vllm", "serve", "M")

pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="the tables above are little-endian")


@pytest.mark.parametrize("table", [("tcp", V4), ("tcp", V4_ALL), ("tcp6", V6_ALL), ("tcp6", MAPPED)])
def test_by_socket(fake_proc: FakeProc, table: tuple[str, str]) -> None:
    """The listener's owner counts, whatever --port says: it may sit behind a wrapper or in a config file."""
    fake_proc.table(
        table[0], [("0100007F:1F41", LISTEN, 70), (table[1], ESTABLISHED, 71), (table[1], LISTEN, 72)]
    )
    fake_proc.process(40, [*VLLM, "--port", "8001"], sockets=[70, 71])
    fake_proc.process(
        41,
        [*VLLM, "-tp", "2", "--port", "1"],
        sockets=[72],
        cwd="/srv",
        environment={
            "HF_HOME": "/hf",
            "HF_TOKEN": "hf_secret",
            "VLLM_API_KEY": "secret",
            "HF_HUB_OFFLINE": "1",
        },
    )
    found = find_engine("127.0.0.1", 8000, proc=fake_proc.root)
    assert found is not None
    assert (found.pid, found.tensor_parallel_size, found.working_directory) == (41, 2, Path("/srv"))
    assert found.environment == {"HF_HOME": "/hf", "HF_HUB_OFFLINE": "1"}
    assert "secret" not in repr(found)


UNIX_HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def test_by_unix_socket(fake_proc: FakeProc) -> None:
    """vLLM's --uds: the listening one of the sockets at that path, which accepted ones share."""
    rows = [
        ("00000000", 70, "/run/v.sock"),
        ("00010000", 71, "/run/other.sock"),
        ("00010000", 72, "/run/v.sock"),
    ]
    (fake_proc.root / "net").mkdir(exist_ok=True)
    (fake_proc.root / "net" / "unix").write_text(
        UNIX_HEAD
        + "".join(f"0000: 00000002 00000000 {flags} 0001 01 {inode} {path}\n" for flags, inode, path in rows)
        + "0000: 00000002 00000000 00000000 0001 03 73\n"
    )
    fake_proc.process(40, [*VLLM, "--uds", "/run/other.sock"], sockets=[70, 71])
    fake_proc.process(41, [*VLLM, "-tp", "2", "--uds", "/run/v.sock"], sockets=[72])
    found = find_engine_at("/run/v.sock", proc=fake_proc.root)
    assert found is not None
    assert (found.pid, found.tensor_parallel_size) == (41, 2)
    assert find_engine_at("/run/none.sock", proc=fake_proc.root) is None


def test_real_unix_socket(tmp_path: Path) -> None:
    """The kernel's table says what we read out of it, blanks in a path included."""
    path = str(tmp_path / "an engine.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        assert unix_inodes(Path("/proc"), path) == frozenset()  # bound, but nobody listens
        sock.listen()
        assert {f"socket:[{inode}]" for inode in unix_inodes(Path("/proc"), path)} == {
            os.readlink(f"/proc/self/fd/{sock.fileno()}")
        }


def test_ipv6_loopback(fake_proc: FakeProc) -> None:
    fake_proc.table("tcp6", [(V6, LISTEN, 72)])
    assert listening_inodes(fake_proc.root, frozenset({ip_address("::1")}), 8000) == {"72"}
    assert listening_inodes(fake_proc.root, frozenset({ip_address("127.0.0.1")}), 8000) == set()


def test_exact_address_wins(fake_proc: FakeProc) -> None:
    """Two listeners on one port: the kernel gives the connection to the one bound to the very address."""
    fake_proc.table("tcp", [(V4_ALL, LISTEN, 71), (V4, LISTEN, 72), ("0200007F:1F40", LISTEN, 73)])
    fake_proc.process(41, [*VLLM, "-tp", "1"], sockets=[71])
    fake_proc.process(42, [*VLLM, "-tp", "2"], sockets=[72])
    fake_proc.process(43, [*VLLM, "-tp", "3"], sockets=[73])
    found = find_engine("127.0.0.1", 8000, proc=fake_proc.root)
    assert found is not None
    assert found.pid == 42


@pytest.mark.parametrize("title", [["VLLM::APIServer_0"], ["sglang::scheduler_TP0", "", ""], []])
def test_rewritten_title_leads_to_the_parent(fake_proc: FakeProc, title: list[str]) -> None:
    """An API server process shows a title instead of its command line; two steps up stands the engine."""
    fake_proc.table("tcp", [(V4_ALL, LISTEN, 72)])
    fake_proc.process(41, VLLM, cwd="/srv", environment={"HF_HOME": "/hf"})
    fake_proc.process(42, ["sh"], parent=41)
    fake_proc.process(43, title, parent=42, sockets=[72], cwd="/elsewhere", environment={"HF_HOME": "/no"})
    found = find_engine("localhost", 8000, proc=fake_proc.root)
    assert found is not None
    assert (found.pid, found.working_directory, found.environment) == (41, Path("/srv"), {"HF_HOME": "/hf"})


def test_parents_in_a_circle(fake_proc: FakeProc) -> None:
    """A process id used again while we read can make a circle of parents."""
    fake_proc.table("tcp", [(V4_ALL, LISTEN, 72)])
    fake_proc.process(42, ["sh"], parent=43)
    fake_proc.process(43, ["x"], parent=42, sockets=[72])
    assert find_engine("127.0.0.1", 8000, proc=fake_proc.root) is None


def test_proxy_on_the_port(fake_proc: FakeProc) -> None:
    """The port is somebody else's: the engine that says 8000 is not what answers there."""
    fake_proc.table("tcp", [(V4_ALL, LISTEN, 72)])
    fake_proc.process(41, VLLM)
    fake_proc.process(43, ["nginx: master process"], sockets=[72])
    assert find_engine("127.0.0.1", 8000, proc=fake_proc.root) is None


@pytest.mark.parametrize(
    ("argv", "port"),
    [
        ([*VLLM], 8000),
        ([*VLLM, "--port", "8123"], 8123),
        (["sglang", "serve", "M"], 30000),
        (["python", "-m", "sglang.launch_server", "--model-path", "M", "--port=8123"], 8123),
    ],
)
def test_by_port(fake_proc: FakeProc, argv: list[str], port: int) -> None:
    """Other users' descriptors are closed to us; their command lines are not."""
    fake_proc.table("tcp", [(f"00000000:{port:04X}", LISTEN, 72)])
    fake_proc.process(40, ["bash"])
    fake_proc.process(41, argv)
    for pid in (40, 41):
        (fake_proc.root / str(pid) / "fd" / "0").unlink()
        (fake_proc.root / str(pid) / "fd").rmdir()
    found = find_engine("127.0.0.1", port, proc=fake_proc.root)
    assert found is not None
    assert (found.pid, dict(found.environment), found.working_directory) == (41, {}, None)
    assert find_engine("127.0.0.1", port + 1, proc=fake_proc.root) is None


def test_port_from_the_engines_config_file(fake_proc: FakeProc, tmp_path: Path) -> None:
    """--config is relative to the directory of the process that was given it."""
    (tmp_path / "c.yaml").write_text("port: 8123\n")
    fake_proc.process(41, [*VLLM, "--config", "c.yaml"], cwd=str(tmp_path))
    assert find_engine("127.0.0.1", 8123, proc=fake_proc.root) is not None
    assert find_engine("127.0.0.1", 8000, proc=fake_proc.root) is None


def test_wrapper_and_engine_agree(fake_proc: FakeProc) -> None:
    """tini shows the same words; the engine under it has the environment."""
    fake_proc.process(1, ["tini", "--", "vllm", "serve", "M"], parent=0)
    fake_proc.process(7, VLLM, environment={"HF_HOME": "/hf"})
    found = find_engine("127.0.0.1", 8000, proc=fake_proc.root)
    assert found is not None
    assert (found.pid, found.environment) == (7, {"HF_HOME": "/hf"})


def test_engines_that_differ_are_not_guessed_between(fake_proc: FakeProc) -> None:
    fake_proc.process(7, [*VLLM, "-tp", "2"])
    fake_proc.process(8, [*VLLM, "-tp", "4"])
    assert find_engine("127.0.0.1", 8000, proc=fake_proc.root) is None


def test_another_containers_engine(fake_proc: FakeProc) -> None:
    """With all of a node's processes in view, only those of our own network listen on our loopback."""
    fake_proc.own_network("net:[1]")
    fake_proc.process(7, [*VLLM, "-tp", "2"], network="net:[1]")
    fake_proc.process(8, [*VLLM, "-tp", "4"], network="net:[2]")
    found = find_engine("127.0.0.1", 8000, proc=fake_proc.root)
    assert found is not None
    assert found.tensor_parallel_size == 2


def test_rubbish_in_proc(fake_proc: FakeProc) -> None:
    """Processes that vanished, kernel threads, bytes that are no text, tables cut short: all passed over."""
    (fake_proc.root / "9").mkdir()  # vanished after it was listed
    (fake_proc.root / "10").write_text("not a directory")
    (fake_proc.root / "٣").mkdir()  # a digit to Python, not to the kernel
    fake_proc.process(11, [])
    fake_proc.process(12, [b"\xff\xfe", b"\x80"], cwd="/gone (deleted)")
    (fake_proc.root / "12" / "status").write_bytes(b"PPid:\tx\n")
    fake_proc.table("tcp", [("zz:1F40", LISTEN, 1), ("0100007F", LISTEN, 2), ("00:1F40", LISTEN, 3)])
    (fake_proc.root / "net" / "tcp6").write_bytes(b"\xff\n\n  0: x\n")
    assert find_engine("127.0.0.1", 8000, proc=fake_proc.root) is None
    fake_proc.process(13, [*VLLM, "--served-model-name", b"\xff"], cwd="/gone (deleted)")
    found = find_engine("127.0.0.1", 8000, proc=fake_proc.root)
    assert found is not None
    assert (found.served_model_name, found.working_directory) == ("\ufffd", None)


def test_no_proc_at_all(tmp_path: Path) -> None:
    """Not every system has one."""
    assert find_engine("127.0.0.1", 8000, proc=tmp_path / "none") is None


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]", "0.0.0.0", "::ffff:127.0.0.1"]
)
def test_this_machine(host: str) -> None:
    assert local_addresses(host)


# TEST-NET and documentation addresses belong to nobody; multicast can be bound but is no machine's own.
@pytest.mark.parametrize(
    "host", ["192.0.2.1", "2001:db8::1", "239.1.2.3", "no such host", "x" * 300, "a\0b", ""]
)
def test_other_machines(host: str, fake_proc: FakeProc) -> None:
    fake_proc.process(7, VLLM)
    assert find_engine(host, 8000, proc=fake_proc.root) is None


def test_name_of_several_machines(fake_proc: FakeProc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A headless service that includes this machine is answered by any of its machines."""
    answers = [(socket.AF_INET, 1, 6, "", (a, 0)) for a in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    fake_proc.process(7, VLLM)
    assert find_engine("service.example", 8000, proc=fake_proc.root) is None


LISTENER = """\
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@contextmanager
def real_engine(script: Path, *arguments: str) -> Iterator[tuple[int, int]]:
    """A process whose command line is an engine's, listening; (pid, port)."""
    script.write_text(LISTENER)
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=script.parent,
        env={"HF_HOME": "/hf", "HF_TOKEN": "hf_secret"},
    )
    with process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's /proc")
def test_real_process(tmp_path: Path) -> None:
    """The real kernel's tables and links; --port is wrong on purpose: only the socket can lead there."""
    with real_engine(tmp_path / "vllm", "serve", "org/name", "-tp", "2", "--port", "1") as (pid, port):
        found = find_engine("127.0.0.1", port)
        assert found is not None
        assert (found.pid, found.model, found.tensor_parallel_size) == (pid, "org/name", 2)
        assert found.working_directory == Path(os.path.realpath(tmp_path))
        assert found.environment == {"HF_HOME": "/hf"}
        assert find_engine("127.0.0.1", port + 1 if port < 65535 else 1024) is None
    with closing(socket.socket()) as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the child is gone"
    assert "hf_secret" not in json.dumps(repr(found))
