"""What one browser has still to be sent. Event loop only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from frontend.inspect.wire import to_json

MAX_UNREAD_BYTES = 2 << 20
"""Steps that wait for one browser; all browsers share the text of a step."""


class Reader:
    """Steps in order, and only the newest of everything else.

    A browser that reads slowly loses the oldest steps it has not been sent, and
    is told how many.
    """

    def __init__(self) -> None:
        self._steps: deque[str] = deque()
        self._bytes = 0
        self._lost = 0
        self._news: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._said_all = False

    def tell(self, name: str, value: str) -> None:
        """Set a field of the next message to this JSON."""
        self._news[name] = value
        self._changed.set()

    def offer(self, steps: Iterable[str]) -> None:
        """Steps as JSON, oldest first."""
        for step in steps:
            self._steps.append(step)
            self._bytes += len(step)
        while self._bytes > MAX_UNREAD_BYTES:
            self._bytes -= len(self._steps.popleft())
            self._lost += 1
        self._changed.set()

    def lose(self, steps: int) -> None:
        """So many steps were lost on their way here."""
        self._lost += steps
        self._changed.set()

    def forget_steps(self) -> None:
        """What waits is of a device service that is no more."""
        self._steps.clear()
        self._bytes = 0

    def end(self, why: str) -> None:
        """One message more, with the reason, and no other."""
        self.tell("end", to_json(why))

    async def take(self) -> bytes | None:
        """Wait for news: all of it, as one server-sent event. None at the end."""
        if self._said_all:
            return None
        await self._changed.wait()
        self._changed.clear()
        if self._lost:
            self._news["lost"] = str(self._lost)
        if self._steps:
            self._news["steps"] = f"[{','.join(self._steps)}]"
        fields = [f'"{name}":{value}' for name, value in self._news.items()]
        self._said_all = "end" in self._news
        self._news = {}
        self._lost = 0
        self.forget_steps()
        return f"data: {{{','.join(fields)}}}\n\n".encode()
