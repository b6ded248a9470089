"""A rolling restart: frontends end and start again, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ttserve.launcher.child import Child
from ttserve.launcher.output import Console


class RollingRestart:
    """Replaces each frontend and waits until the new one is ready.

    A frontend that does not get ready holds up the rest, which go on as they
    are. `wait_until_ready` is given its name. Whoever keeps the children running
    asks `is_part` about one that has ended, and starts it again at once.
    """

    def __init__(
        self,
        frontends: Sequence[Child],
        wait_until_ready: Callable[[str], Awaitable[None]],
        console: Console,
        grace: float,
    ) -> None:
        self._frontends = tuple(frontends)
        self._wait_until_ready = wait_until_ready
        self._console = console
        self._grace = grace
        self._under_way: asyncio.Task[None] | None = None
        self._replaced: Child | None = None
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Start one, unless one is under way."""
        if self._under_way is not None and not self._under_way.done():
            self._console.say("a rolling restart is under way already")
            return
        self._under_way = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Leave the remaining frontends as they are."""
        if self._under_way is not None:
            self._under_way.cancel()

    def is_part(self, child: Child) -> bool:
        """Whether a child that has ended was asked to, to be started again."""
        if child is not self._replaced:
            return False
        self._replaced = None
        self._ended.set()
        return True

    async def _run(self) -> None:
        self._console.say("rolling restart: one frontend at a time")
        for frontend in self._frontends:
            await self._replace(frontend)
            await self._wait_until_ready(frontend.name)
            self._console.say(f"{frontend.name} is ready again")
        self._console.say("rolling restart: done")

    async def _replace(self, frontend: Child) -> None:
        if not frontend.is_running:  # ended by itself: the next start is a new one
            return
        self._replaced = frontend
        self._ended.clear()
        frontend.interrupt()
        try:
            await asyncio.wait_for(self._ended.wait(), self._grace)
        except asyncio.TimeoutError:
            self._console.say(f"{frontend.name} has not stopped; killing it")
            frontend.kill()
            await self._ended.wait()
