"""One thread that does everything slow to the device, in order.

Opening, loading, warming up and closing run on the same thread, as device
libraries like it, while the event loop goes on answering. The thread is a
daemon: a start that is given up does not hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class DeviceThread:
    """Runs calls one after another. Event loop only."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a call behind those before it; cancelling does not stop it."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                value = function(*args)
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                self._tell(answer, answer.set_exception, error)
            else:
                self._tell(answer, answer.set_result, value)

        self._calls.put(run)
        return await answer

    def _tell(
        self, answer: asyncio.Future[Any], tell: Callable[[Any], None], what: object
    ) -> None:
        def settle() -> None:
            if not answer.done():
                tell(what)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(settle)

    def _run(self) -> None:
        while True:
            self._calls.get()()
