"""The settings in force: what they are, where they come from, and how they are read again."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from exporter import catalogue as c
from exporter.collect_records import Adder
from exporter.fleet import Watch
from exporter.log import configure, log
from exporter.settings import ServeSettings, field_name, load, origins, problems
from exporter.shared import Shared

# A reload can't change these: sockets are bound, files are open, a queue is full of what was taken.
NEEDS_RESTART = ("listen_address", "web_config_file", "forward_traces", "state_directory")
NOT_SHOWN = frozenset({"check_config", "config_file"})
# By name, for what is a secret without being typed as one; a path to a secret is none.
SECRET = re.compile(
    r"(?i)(password|secret|api_?key|credential|authorization|(?<!per_)token$)(?!.*_(file|path)$)"
)
USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
QUERY = re.compile(r"(?<=\?).+")
MASK = "**********"


class ReloadError(Exception):
    """Settings that are not taken; the old ones stay in force."""


class Control:
    """Reload and display of the settings.

    ``words``: the command line they were read from; None where they came from elsewhere, and there is
    nothing to read again.
    """

    def __init__(
        self, watch: Watch, words: Sequence[str] | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._watch = watch
        self._words = words
        self._now = now
        self._origins = origins(ServeSettings, words) if words is not None else {}
        self._reloads: Shared[None] = Shared()
        self.successful = True
        self.success_timestamp = now()
        self.also: Callable[[Adder], None] | None = None
        """Adds what other files that are re-read say of themselves."""

    def add(self, out: Adder) -> None:
        """What there is to say on /metrics."""
        out.add(c.CONFIG_RELOAD_SUCCESSFUL, 1 if self.successful else 0, {})
        out.add(c.CONFIG_RELOAD_TIMESTAMP, self.success_timestamp, {})
        if self.also is not None:
            self.also(out)

    async def reload(self) -> None:
        """Read the settings again; all of them are taken, or none.  Raises :class:`ReloadError`."""
        await asyncio.shield(self._reloads.join(None, self._reload))

    async def _reload(self) -> None:
        try:
            await self._take()
        except ReloadError as error:
            self.successful = False
            log.error("settings not reloaded", detail=str(error)[:500])
            raise
        self.successful = True
        self.success_timestamp = self._now()
        log.info("settings reloaded", targets=len(self._watch.watchers))

    async def _take(self) -> None:
        words = self._words
        if words is None:
            raise ReloadError("these settings come from no file")
        try:
            new, told = await asyncio.to_thread(
                lambda: (load(ServeSettings, words), origins(ServeSettings, words))
            )
        except ValidationError as error:
            raise ReloadError("; ".join(problems(error))) from None
        except (SettingsError, ValueError, OSError) as error:
            raise ReloadError(str(error)) from None
        assert isinstance(new, ServeSettings)  # noqa: S101
        for name in NEEDS_RESTART:
            if getattr(new, name) != getattr(self._watch.settings, name):
                raise ReloadError(f"{name}: a change of it needs a restart")
        self._watch.apply(new)
        self._origins = told
        configure(new.log_level, new.log_format)

    async def serve_reload(self, _: Request) -> Response:
        """200, or 500 with the reason."""
        try:
            await self.reload()
        except ReloadError as error:
            return PlainTextResponse(f"{error}\n", 500)
        return PlainTextResponse("reloaded\n")

    async def serve_config(self, request: Request) -> Response:
        """The settings in force as YAML, the origin of each beside it; as JSON with ``output=json``."""
        said = masked(self._watch.settings)
        if request.query_params.get("output") == "json":
            return JSONResponse({"settings": said, "from": self._origins})
        blocks: list[str] = []
        for name, value in said.items():
            first, *rest = yaml.safe_dump({name: value}, sort_keys=False).splitlines(keepends=True)
            origin = self._origins.get(name)
            blocks += [first.rstrip("\n"), f"  # {origin}\n" if origin else "\n", *rest]
        return PlainTextResponse("".join(blocks), media_type="application/yaml")


def masked(settings: ServeSettings) -> dict[str, Any]:
    """The settings by their public names, without a secret."""
    plain = settings.model_dump(mode="json", exclude=set(NOT_SHOWN))
    return {
        field_name(name): MASK if _secret(name, value) else _masked(value) for name, value in plain.items()
    }


def _secret(name: str, value: Any) -> bool:
    return bool(value) and SECRET.search(name) is not None


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        # Of one target or module only what was said: twenty empty lines for each would hide it.
        return {
            field_name(key): MASK if _secret(key, part) else _masked(part)
            for key, part in value.items()
            if part not in (None, "", False, [], {})
        }
    if isinstance(value, list):
        return [_masked(part) for part in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_text(text: str) -> str:
    """A URL without user, password and query; what is none as it is."""
    return QUERY.sub(MASK, USERINFO.sub(f"{MASK}@", text)) if "://" in text else text
