"""``kvcache-exporter serve | demo | explain | check | record | replay | plan``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from pydantic import ValidationError
from pydantic_settings import SettingsError

from exporter import __version__
from exporter.settings import (
    COMMANDS,
    CheckSettings,
    CommandSettings,
    DemoSettings,
    ExplainSettings,
    RecordSettings,
    ReplaySettings,
    ServeSettings,
    flags,
    load,
    problems,
)

USAGE = """\
usage: kvcache-exporter COMMAND [--flag value ...]

commands:
  serve    watch engines and serve /metrics (default target http://127.0.0.1:8000)
  demo     the same, against a recorded run of both engines, no network needed
  explain  one readout: every step of the arithmetic, its inputs and their sources
  check    an engine examined: what it tells, what is missing, which flags would help
  record   save what an engine says over some time, redacted, to send to somebody
  replay   the exporter against such a recording
  plan     before deploying: what a model's cache takes, and how many sequences fit
  version  print the version

kvcache-exporter COMMAND --help shows a command's flags. Every flag is also an
environment variable, KVCACHE_EXPORTER_<FLAG>, and a key of --config-file.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 good, 1 the command failed, 2 bad usage or settings."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words.pop(0) if words else "--help"
    if command in ("--help", "-h", "help"):
        print(USAGE, end="")
        return 0
    if command in ("version", "--version", "-V"):
        print(__version__)
        return 0
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "serve": _serve,
        "demo": _demo,
        "explain": _explain,
        "check": _check,
        "record": _record,
        "replay": _replay,
        "plan": _plan,
    }
    if command not in commands:
        print(f"kvcache-exporter: no such command: {command}\n\n{USAGE}", file=sys.stderr, end="")
        return 2
    if "--help" in words or "-h" in words:
        print(_help(_kind(command)), end="")
        return 0
    try:
        code = commands[command](words)
        sys.stdout.flush()
        return code  # noqa: TRY300  (the flush belongs to what may fail)
    except ValidationError as error:
        for problem in problems(error):
            print(f"kvcache-exporter {command}: {problem}", file=sys.stderr)
        return 1 if "--check-config" in words else 2
    except (SettingsError, ValueError) as error:
        print(f"kvcache-exporter {command}: {error}", file=sys.stderr)
        return 1 if "--check-config" in words else 2
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # `explain | head`; what is left to write must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _kind(command: str) -> type[CommandSettings]:
    if command in COMMANDS:
        return COMMANDS[command]
    from exporter.planner.settings import PlanSettings  # noqa: PLC0415

    return PlanSettings


def _help(kind: type[CommandSettings]) -> str:
    rows = [
        (f"{flag} VALUE" if flag.startswith("--") else flag, f"{meaning} [{default}]" if default else meaning)
        for flag, default, meaning in flags(kind)
    ]
    width = max(len(flag) for flag, _ in rows)
    about = (kind.__doc__ or "").partition("\n")[0]
    return "".join([f"{about}\n\n", *(f"  {flag:{width}}  {meaning}\n" for flag, meaning in rows)])


def _serve(words: Sequence[str]) -> int:
    from exporter.log import configure  # noqa: PLC0415

    settings: ServeSettings = load(ServeSettings, words)
    configure(settings.log_level, settings.log_format)
    return _run(settings, words)


def _run(settings: ServeSettings, words: Sequence[str]) -> int:
    # The web stack is only needed here, and explain and plan should start quickly.
    from exporter import web  # noqa: PLC0415
    from exporter.fleet import Watch  # noqa: PLC0415
    from exporter.log import log  # noqa: PLC0415
    from exporter.web.secured import WebConfig  # noqa: PLC0415

    file = settings.web_config_file
    web_config = WebConfig(file) if file else None
    if settings.check_config:
        print("the settings are good")
        return 0
    for path in {t.model_config_path or settings.model_config_path for t in settings.target}:
        if path is not None and not path.exists():
            log.warning("no such model config", path=str(path))
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(web.serve(Watch(settings), settings.listen_address, words, web_config))
    except OSError as error:
        log.error("cannot serve", listen=settings.listen_address, detail=str(error))
        return 1
    log.info("stopped")
    return 0


def _demo(words: Sequence[str]) -> int:
    from exporter.demo import NAMES, what_to_look_at  # noqa: PLC0415
    from exporter.demo import load as load_demo  # noqa: PLC0415
    from exporter.log import configure  # noqa: PLC0415
    from exporter.recording.command import Play, play  # noqa: PLC0415

    settings: DemoSettings = load(DemoSettings, words)
    configure(settings.log_level, settings.log_format)
    return play(
        {f"demo-{name}": load_demo(name) for name in NAMES},
        Play(settings.listen_address, settings.poll_interval, settings.context),
        lambda _: what_to_look_at(f"http://{settings.listen_address}"),
    )


def _record(words: Sequence[str]) -> int:
    from exporter.log import configure  # noqa: PLC0415
    from exporter.recording.command import record  # noqa: PLC0415

    settings: RecordSettings = load(RecordSettings, words)
    configure(settings.log_level, settings.log_format)
    return record(settings)


def _replay(words: Sequence[str]) -> int:
    from exporter.log import configure  # noqa: PLC0415
    from exporter.recording.command import replay  # noqa: PLC0415

    settings: ReplaySettings = load(ReplaySettings, words)
    configure(settings.log_level, settings.log_format)
    return replay(settings)


def _explain(words: Sequence[str]) -> int:
    from exporter.log import configure  # noqa: PLC0415
    from exporter.once import explain_once  # noqa: PLC0415

    settings: ExplainSettings = load(ExplainSettings, words)
    configure(settings.log_level, settings.log_format)
    return explain_once(settings)


def _check(words: Sequence[str]) -> int:
    from exporter.check.command import run  # noqa: PLC0415
    from exporter.log import configure  # noqa: PLC0415

    settings: CheckSettings = load(CheckSettings, words)
    configure(settings.log_level, settings.log_format)
    return run(settings)


def _plan(words: Sequence[str]) -> int:
    from exporter.planner.command import run  # noqa: PLC0415
    from exporter.planner.settings import PlanSettings, ordered  # noqa: PLC0415

    return run(load(PlanSettings, ordered(words)))
