"""Usage while a load runs: ours, the engine's and the client's, for the plot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from .checks import Account, Moment
from .load import Load
from .page import Page
from .sidecar import Sidecar

_EVERY_S = 0.25
# A break in the line between two loads.
_BETWEEN_S = 1.0


@asynccontextmanager
async def watched(
    account: Account,
    load: Load,
    sidecar: Sidecar,
    *,
    ours: str,
    engine: Callable[[Page], float],
    truth: Callable[[Sequence[int]], float],
) -> AsyncIterator[None]:
    """Keep a moment every quarter of a second, of requests in motion: a picture to look at, not a check.

    `ours` is the series of ours; `engine` reads the same off the engine's page; `truth` is what sequences of
    these lengths hold.
    """
    began = time.monotonic() - (account.usage[-1].at + _BETWEEN_S if account.usage else 0.0)

    async def look() -> None:
        while True:
            page = await load.scrape()
            held = [r.computed_tokens for r in load.requests if r.received_tokens and not r.finished]
            said = (await asyncio.to_thread(sidecar.scrape)).all(ours)
            if said:
                account.usage.append(
                    Moment(
                        round(time.monotonic() - began, 3),
                        sum(sample.value for sample in said),
                        engine(page),
                        truth(held),
                    )
                )
            await asyncio.sleep(_EVERY_S)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
