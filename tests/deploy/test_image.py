"""The image, as far as it can be proved without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.rig.server import Server, free_port
from tests.rig.waiting import wait_for

from .objects import DEPLOY, ROOT, program

DOCKERFILE: Final = DEPLOY / "Dockerfile"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What the image runs on; a package that only another platform wants may be missing.
PLATFORMS: Final = [
    {"sys_platform": "linux", "platform_machine": machine, "python_version": "3.13"}
    for machine in ("x86_64", "aarch64")
]


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of the Dockerfile, continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def final_stage() -> list[tuple[str, str]]:
    """The instructions after the last FROM."""
    made = instructions()
    last = max(i for i, (word, _) in enumerate(made) if word == "FROM")
    return made[last + 1 :]


def locked(name: str) -> dict[str, Requirement]:
    """Package -> its line of a lock."""
    text = (DEPLOY / name).read_text()
    lines = [line.split(" \\")[0] for line in text.splitlines() if line and line[0] not in " #"]
    return {one.name.lower(): one for one in map(Requirement, lines)}


def test_hadolint() -> None:
    """No rule is switched off."""
    done = subprocess.run([program("hadolint"), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", PROJECT["project"]["dependencies"]),
        ("build.lock", PROJECT["build-system"]["requires"]),
    ],
)
def test_lock_satisfies_pyproject(lock: str, wanted: list[str]) -> None:
    """After a change of pyproject.toml: make lock."""
    rows = locked(lock)
    for one in map(Requirement, wanted):
        assert one.name.lower() in rows, f"{one}: not in {lock}; make lock"
        (pinned,) = rows[one.name.lower()].specifier
        assert pinned.operator == "=="
        assert one.specifier.contains(pinned.version), f"{one}: {lock} has {pinned}; make lock"


def test_lock_holds_all_that_the_installed_exporter_needs() -> None:
    """Of the dependencies' dependencies too: what is installed here and used by the exporter is locked."""
    rows = {name.replace("_", "-") for name in locked("requirements.lock")}
    seen: set[str] = set()
    todo = [Requirement(one) for one in PROJECT["project"]["dependencies"]]
    while todo:
        one = todo.pop()
        name = one.name.lower().replace("_", "-")
        environments = [{**platform, "extra": extra} for platform in PLATFORMS for extra in (*one.extras, "")]
        if name in seen:
            continue
        seen.add(name)
        assert name in rows, f"{one}: make lock"
        todo += [
            need
            for need in map(Requirement, requires(name) or ())
            if need.marker is None or any(need.marker.evaluate(environment) for environment in environments)
        ]
    assert len(seen) > len(PROJECT["project"]["dependencies"])


@pytest.mark.parametrize("lock", ["requirements.lock", "build.lock"])
def test_lock_is_hashed_and_names_no_index(lock: str) -> None:
    """pip --require-hashes wants all; where packages come from is the builder's affair."""
    text = (DEPLOY / lock).read_text()
    entries = re.split(r"(?m)^(?=[a-z])", re.sub(r"(?m)^#.*\n", "", text))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries if entry.strip())
    assert not re.search(r"://|index-url|find-links", text)


def test_context_is_what_the_build_copies() -> None:
    """.dockerignore lets through each source of a COPY and nothing else: no .git, no .venv, no secrets."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_through
    assert all((ROOT / source).exists() for source in copied)
    assert next(line for line in ignore if not line.startswith("#")) == "*"


def test_wheel_needs_nothing_but_the_context() -> None:
    """Files that pyproject.toml names for the wheel are among those copied."""
    project = PROJECT["project"]
    copied = (ROOT / ".dockerignore").read_text()
    for name in (project["readme"], *project["license-files"]):
        assert f"!{name}" in copied.splitlines()


def test_base_is_pinned_and_one() -> None:
    """By digest; the placeholder is for the builder to fill in."""
    given = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")
    assert re.fullmatch(r"python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", given["PYTHON_IMAGE"])
    bases = {rest.split(" AS ")[0] for word, rest in instructions() if word == "FROM"}
    assert bases == {"${PYTHON_IMAGE}"}


def test_no_shell_and_no_root_at_run_time() -> None:
    """Every list is a list, the user is a number, and it is nobody."""
    stage = final_stage()
    users = [rest for word, rest in stage if word == "USER"]
    assert users == ["65534:65534"]
    for word, rest in stage:
        if word in {"ENTRYPOINT", "CMD", "RUN"}:
            assert isinstance(json.loads(rest), list), (word, rest)
    kinds = [word for word, _ in stage]
    assert kinds.index("USER") > max(i for i, word in enumerate(kinds) if word in {"RUN", "COPY"})


def test_labels() -> None:
    """Those that tools look for."""
    text = " ".join(rest for word, rest in final_stage() if word == "LABEL")
    names = {word.split("=")[0].removeprefix("org.opencontainers.image.") for word in shlex.split(text)}
    assert names == {"title", "description", "licenses", "version", "revision", "created", "source"}


@pytest.fixture
def confined(tmp_path: Path) -> list[str]:
    """A command's beginning: a mount namespace where all is read-only but one folder, and nobody's rights.

    dac_read_search stays, since the Python of a developer may lie in a home that nobody else may enter; it
    lets nothing be written.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "findmnt"))):
        pytest.skip("needs root and util-linux")
    writable = tmp_path / "cache"
    writable.mkdir()
    os.chown(writable, 65534, 65534)
    script = tmp_path / "confine.sh"
    script.write_text(
        "set -eu\n"
        "mount --make-rprivate /\n"
        f"mount -t tmpfs -o mode=0700,uid=65534,gid=65534 tmpfs {writable}\n"
        # All but the kernel's own: proc, sys and dev, as in a container.
        "findmnt -rno TARGET | grep -Ev '^/(proc|sys|dev)(/|$)' | while read -r place; do\n"
        f'  [ "$place" = "{writable}" ] || mount -o remount,ro,bind "$place" 2>/dev/null || true\n'
        "done\n"
        f"if touch {ROOT}/written {tmp_path}/written 2>/dev/null; then echo 'not read-only' >&2; exit 1; fi\n"
        "caps=-all,+dac_read_search\n"
        'exec setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set="$caps" '
        '--inh-caps="$caps" --ambient-caps="$caps" "$@"\n'
    )
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("no mount namespaces here")
    return ["unshare", "--mount", "sh", str(script)]


def test_runs_as_nobody_on_a_read_only_root_without_a_home(confined: list[str], tmp_path: Path) -> None:
    """As the pod's security context has it: the image's own variables, and no HOME."""
    given = dict(re.findall(r"(\w+)=(\S+)", " ".join(rest for word, rest in final_stage() if word == "ENV")))
    cache = str(tmp_path / "cache")
    environment = {
        **given,
        "PATH": "/usr/bin:/bin:/usr/sbin",
        "PYTHONPATH": str(ROOT),
        "HF_HOME": cache,
        "TMPDIR": cache,
        "HF_HUB_OFFLINE": "1",
    }
    port = free_port()
    start = [sys.executable, "-c", "from exporter.cli import main; raise SystemExit(main())"]
    command = [*confined, *start, "serve", "--listen-address", f"127.0.0.1:{port}"]
    with Server(command, environment, tmp_path / "log", port) as server:
        wait_for(lambda: server.answers("/-/ready"), 30, "the exporter listening")
        assert server.scrape().one("kvcache_exporter_build_info")
    assert "Traceback" not in server.log()
    assert "Read-only" not in server.log()
