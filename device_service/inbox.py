"""The engine's inbox: what other threads want done between two steps."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Action = Callable[[], None]
T = TypeVar("T")


class Inbox:
    """Actions that run on the engine thread, in the order in which they came."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._next: Action | None = None

    def put(self, action: Action) -> None:
        """Queue an action and wake the engine. Any thread."""
        self._queue.put(action)

    def ask(self, question: Callable[[], T]) -> Future[T]:
        """Queue a question; the future gets its answer or its exception. Any thread."""
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question())
            except BaseException as error:  # noqa: BLE001 - it belongs to the asker
                future.set_exception(error)

        self.put(answer)
        return future

    def run(self) -> None:
        """Run everything that is queued now. Engine thread."""
        if self._next is not None:
            action, self._next = self._next, None
            action()
        for _ in range(self._queue.qsize()):
            self._queue.get_nowait()()

    def wait(self) -> None:
        """Sleep until an action is queued. Engine thread."""
        if self._next is None:
            self._next = self._queue.get()
