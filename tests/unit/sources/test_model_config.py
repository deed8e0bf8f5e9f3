"""Where config.json comes from, and that nothing found on the way can raise or leak."""

from __future__ import annotations

import errno
import functools
import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import hf_hub_download

from exporter.kvmath.known import Reason, Unavailable
from exporter.sources import FoundConfig, find_model_config, model_config

from .conftest import CONFIG, REVISION, FakeHub, HubCache

OTHER = {"model_type": "other"}


def found(result: FoundConfig | Unavailable) -> FoundConfig:
    assert isinstance(result, FoundConfig), result
    return result


def missing(result: FoundConfig | Unavailable, reason: Reason = Reason.MODEL_CONFIG) -> str:
    assert isinstance(result, Unavailable), result
    assert result.reason is reason
    assert result.detail
    assert "\n" not in result.detail
    return result.detail


def write(directory: Path, config: object = CONFIG, name: str = "config.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / name
    file.write_text(json.dumps(config))
    return file


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        pytest.fail("the hub was asked")

    monkeypatch.setattr(model_config, "hf_hub_download", refuse)


@pytest.fixture
def at_hub(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The real hf_hub_download, pointed at a hub of our own."""
    monkeypatch.setattr(
        model_config, "hf_hub_download", functools.partial(hf_hub_download, endpoint=fake_hub.url)
    )
    return fake_hub


@pytest.mark.parametrize("name", ["config.json", "llama.json"])
def test_explicit_file(tmp_path: Path, name: str) -> None:
    """A user may give the file itself, under any name."""
    file = write(tmp_path / "m", name=name)
    assert find_model_config(file, None) == FoundConfig(CONFIG, "path", str(file), tmp_path / "m")


def test_explicit_directory(tmp_path: Path) -> None:
    file = write(tmp_path / "m")
    assert find_model_config(tmp_path / "m", None) == FoundConfig(CONFIG, "path", str(file), tmp_path / "m")


@pytest.mark.usefixtures("no_hub")
def test_explicit_is_the_only_place(tmp_path: Path) -> None:
    """A typo in the user's path must show, not be papered over by what the engine says."""
    write(tmp_path / "reported")
    detail = missing(find_model_config(tmp_path / "typo.json", str(tmp_path / "reported")))
    assert detail == f"{tmp_path}/typo.json: no such file or directory"


def test_reported_absolute(tmp_path: Path) -> None:
    write(tmp_path / "m")
    result = found(find_model_config(None, str(tmp_path / "m")))
    assert (result.source, result.directory) == ("path", tmp_path / "m")


def test_reported_config_file_itself(tmp_path: Path) -> None:
    file = write(tmp_path / "m")
    assert found(find_model_config(None, str(file))).location == str(file)


def test_reported_reads_no_other_file(tmp_path: Path) -> None:
    """An engine's word must not turn us into a reader of any JSON file on the machine."""
    file = write(tmp_path, OTHER, "secrets.json")
    assert str(file) in missing(find_model_config(None, str(file), allow_hub=False))


def test_relative_to_the_engines_directory_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm serve ./m` means the engine's directory; ours is only the second try."""
    write(tmp_path / "engine" / "m")
    write(tmp_path / "ours" / "m", OTHER)
    monkeypatch.chdir(tmp_path / "ours")
    assert found(find_model_config(None, "./m", base_directory=tmp_path / "engine")).config == CONFIG
    assert found(find_model_config(None, "./m", base_directory=tmp_path / "gone")).config == OTHER


@pytest.mark.usefixtures("no_hub")
def test_local_path_before_cache(tmp_path: Path, hub_cache: HubCache) -> None:
    """The engines, too, take org/name as a directory if there is one."""
    write(tmp_path / "org" / "name")
    hub_cache.add("org/name", json.dumps(OTHER))
    result = find_model_config(None, "org/name", base_directory=tmp_path, cache_dir=hub_cache.root)
    assert found(result).config == CONFIG


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("repo_id", ["org/name", "gpt2"])
def test_cache(hub_cache: HubCache, repo_id: str) -> None:
    """refs/main leads to the snapshot; its directory is where weights may lie.

    A name without owner (the hub's oldest models) is fine in a cache.
    """
    snapshot = hub_cache.add(repo_id, json.dumps(CONFIG))
    result = find_model_config(None, repo_id, cache_dir=hub_cache.root)
    assert result == FoundConfig(CONFIG, "hf_cache", repo_id, snapshot)


@pytest.mark.usefixtures("no_hub")
def test_own_cache_after_the_engines(own_hub_cache: Path, hub_cache: HubCache) -> None:
    """The engine's cache may not be mounted here while ours was filled by an earlier start."""
    HubCache(own_hub_cache).add("org/name", json.dumps(CONFIG))
    assert found(find_model_config(None, "org/name", cache_dir=hub_cache.root)).source == "hf_cache"


@pytest.mark.usefixtures("no_hub")
def test_snapshot_path_of_another_container(hub_cache: HubCache) -> None:
    """Offline, vLLM serves the snapshot's path; under our root the same snapshot is found.

    refs/main points elsewhere: the path's own revision counts.
    """
    snapshot = hub_cache.add("org/name", json.dumps(CONFIG), ref="v1")
    path = f"/root/.cache/huggingface/hub/models--org--name/snapshots/{REVISION}"
    result = find_model_config(None, path, cache_dir=hub_cache.root)
    assert result == FoundConfig(CONFIG, "hf_cache", "org/name", snapshot)


def test_cache_without_main(hub_cache: HubCache) -> None:
    """Another revision's config may be another model's: not taken."""
    hub_cache.add("org/name", json.dumps(CONFIG), ref="v1")
    detail = missing(find_model_config(None, "org/name", cache_dir=hub_cache.root, allow_hub=False))
    assert "org/name" in detail
    assert "not to be asked" in detail


def test_cached_but_broken(hub_cache: HubCache) -> None:
    hub_cache.add("org/name", "{")
    detail = missing(
        find_model_config(None, "org/name", cache_dir=hub_cache.root, allow_hub=False),
        Reason.BAD_MODEL_CONFIG,
    )
    assert "config.json: not JSON" in detail


DEEP = "[" * 200_000
BAD = {
    "empty": ("", "not JSON"),
    "html": ("<html>", "not JSON"),
    "list": ("[1]", "not an object"),
    "null": ("null", "not an object"),
    "deep": (DEEP, "nested too deeply"),
    "number of 5000 digits": ('{"a": ' + "1" * 5000 + "}", "not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_content_that_is_no_config(tmp_path: Path, case: str) -> None:
    """Each is a file somebody really has; none may raise, each is named."""
    content, why = BAD[case]
    (tmp_path / "config.json").write_text(content)
    for result in (find_model_config(tmp_path, None), find_model_config(None, str(tmp_path))):
        detail = missing(result, Reason.BAD_MODEL_CONFIG)
        assert detail.startswith(f"{tmp_path}/config.json: ")
        assert why in detail


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    missing(find_model_config(tmp_path, None), Reason.BAD_MODEL_CONFIG)


def test_size_cap(tmp_path: Path) -> None:
    """8 MiB is read, one byte more is not, however little of it is on disk."""
    file = tmp_path / "config.json"
    file.write_bytes(b"{}" + b" " * (8 * 2**20 - 2))
    assert found(find_model_config(file, None)).config == {}
    with file.open("ab") as more:
        more.write(b" ")
    assert "larger than 8388608 bytes" in missing(find_model_config(file, None), Reason.BAD_MODEL_CONFIG)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's answer is imitated: tests may run as root, to whom it never says no."""
    write(tmp_path)

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", denied)
    assert missing(find_model_config(tmp_path, None)) == f"{tmp_path}/config.json: permission denied"


def test_symlink_loop(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for result in (find_model_config(tmp_path / "a", None), find_model_config(None, str(tmp_path / "a"))):
        assert "too many levels of symbolic links" in missing(result)


def test_directory_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    assert "a directory" in missing(find_model_config(tmp_path, None))


def test_fifo_does_not_hang(tmp_path: Path) -> None:
    """Opening a FIFO without a writer blocks for ever unless asked not to."""
    os.mkfifo(tmp_path / "config.json")
    assert "not a regular file" in missing(find_model_config(tmp_path, None))


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/null"])
def test_devices_are_no_files(tmp_path: Path, device: str) -> None:
    """Endless, or waiting for somebody: as a path, and behind a link with the right name."""
    (tmp_path / "config.json").symlink_to(device)
    for explicit in (tmp_path, tmp_path / "config.json", Path(device)):
        assert "not a regular file" in missing(find_model_config(explicit, None))


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 1 GiB: refused by its size, after no more than the cap was read."""
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**30)
    tracemalloc.start()
    try:
        found = find_model_config(tmp_path, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.BAD_MODEL_CONFIG
    assert peak < 4 * model_config.MAX_CONFIG_BYTES


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """The watcher asks again and again: one leaked descriptor per refusal would end it."""
    (tmp_path / "config.json").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        find_model_config(tmp_path, None)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    "reported",
    [
        "/nowhere/model",
        "a/b/c",
        "s3://bucket/model",
        "org/name:Q4_K_M",
        "../model",
        "org/na me",
        "org--x/name",
        "bad\0name",
        "\ud800",
        "x" * 5000,
        "line\nbreak",
        "alias",  # could be a hub model of old, but is as likely a name of the user's own
    ],
)
def test_names_the_hub_is_never_asked_for(reported: str) -> None:
    missing(find_model_config(None, reported))


@pytest.mark.parametrize("reported", [None, "", "  "])
def test_engine_says_nothing(reported: str | None) -> None:
    missing(find_model_config(None, reported))


def test_hub(at_hub: FakeHub, own_hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched once with the user's token, then it is in the cache."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    result = found(find_model_config(None, "org/name"))
    snapshot = own_hub_cache / "models--org--name" / "snapshots" / REVISION
    assert result == FoundConfig(CONFIG, "hub", "org/name", snapshot)
    assert at_hub.requests[0] == ("HEAD", "/org/name/resolve/main/config.json", "Bearer hf_secret")
    asked = len(at_hub.requests)
    assert found(find_model_config(None, "org/name")).source == "hf_cache"
    assert len(at_hub.requests) == asked


def test_hub_not_allowed(at_hub: FakeHub) -> None:
    missing(find_model_config(None, "org/name", allow_hub=False))
    assert at_hub.requests == []


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((403, "GatedRepo"), "gated"),
        ((401, "RepoNotFound"), "not on the hub, or private"),
        ((404, "RepoNotFound"), "not on the hub, or private"),
        ((404, "RevisionNotFound"), "no such revision"),
        ((404, "EntryNotFound"), "without a config.json"),
        ((400, None), "could not be reached"),
    ],
)
def test_hub_refuses(
    at_hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: tuple[int, str | None],
    words: str,
) -> None:
    """Each refusal in words that say what to do; the token is nowhere in them."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (at_hub.status, at_hub.error_code), at_hub.body = refusal, b""
    detail = missing(find_model_config(None, "org/name"))
    assert detail.startswith("org/name: ")
    assert words in detail
    assert "hf_secret" not in detail + caplog.text
    assert at_hub.url not in detail


def test_hub_sends_rubbish(at_hub: FakeHub) -> None:
    at_hub.body = b"<html>"
    assert "org/name from the hub" in missing(find_model_config(None, "org/name"), Reason.BAD_MODEL_CONFIG)


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 1 of the loopback answers nobody; the library's pauses between its tries are left out."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(
        model_config, "hf_hub_download", functools.partial(hf_hub_download, endpoint="http://127.0.0.1:1")
    )
    assert "could not be reached" in missing(find_model_config(None, "org/name"))


def test_read_only_cache(at_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a read-only root filesystem the config is fetched beside the cache and nothing stays."""
    used: list[str] = []

    def read_only(repo_id: str, name: str, *, revision: str | None, cache_dir: str | None = None) -> str:
        if cache_dir is None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        used.append(cache_dir)
        return hf_hub_download(repo_id, name, revision=revision, cache_dir=cache_dir, endpoint=at_hub.url)

    monkeypatch.setattr(model_config, "hf_hub_download", read_only)
    assert find_model_config(None, "org/name") == FoundConfig(CONFIG, "hub", "org/name", None)
    assert not Path(used[0]).exists()


def test_surprise_inside_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception's text may hold an address with a password: only its type is told."""

    def surprise(*_: object, **__: object) -> str:
        raise RuntimeError("https://user:password@hub.example")

    monkeypatch.setattr(model_config, "hf_hub_download", surprise)
    assert (
        missing(find_model_config(None, "org/name")) == "org/name: the hub gave no config.json (RuntimeError)"
    )


@pytest.mark.parametrize("offline", [False, True])
def test_offline_setting(fake_hub: FakeHub, tmp_path: Path, offline: bool) -> None:
    """HF_HUB_OFFLINE=1 as the library reads it, in a process of its own: not one request.

    Without it the same process does ask, so the silence is the setting's doing.
    """
    fake_hub.status, fake_hub.error_code = 404, "RepoNotFound"
    environment = {
        "PATH": os.environ["PATH"],
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": fake_hub.url,
        "HF_HUB_OFFLINE": "1" if offline else "0",
    }
    code = "from exporter.sources import find_model_config; print(find_model_config(None, 'org/name'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert ("HF_HUB_OFFLINE is set" in done.stdout) is offline
    assert (fake_hub.requests == []) is offline


def test_cache_layout_is_the_librarys(hub_cache: HubCache) -> None:
    """The fixture's layout against the library's own reader, lest the tests above agree only with us."""
    snapshot = hub_cache.add("org/name", json.dumps(CONFIG))
    path = huggingface_hub.try_to_load_from_cache("org/name", "config.json", cache_dir=hub_cache.root)
    assert path == str(snapshot / "config.json")
