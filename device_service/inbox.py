"""The engine's inbox: what other threads want done between two steps."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, TypeVar

from device_service.recording.events import Event

Action = Callable[[], None]
Entry = tuple[Action, Event | None]
T = TypeVar("T")


class Witness(Protocol):
    """Who is told what the engine takes from its inbox, and when. Engine thread."""

    def looked(self) -> None:
        """The engine takes what is there now."""

    def saw(self, event: Event) -> None:
        """It takes this, and acts on it next."""


class Inbox:
    """Actions that run on the engine thread, in the order in which they came."""

    def __init__(self, witness: Witness) -> None:
        self._queue: queue.SimpleQueue[Entry] = queue.SimpleQueue()
        self._next: Entry | None = None
        self._witness = witness

    def put(self, action: Action, event: Event | None = None) -> None:
        """Queue an action and wake the engine. Any thread.

        `event` says what it stands for; None: it changes nothing.
        """
        self._queue.put((action, event))

    def ask(self, question: Callable[[], T], event: Event | None = None) -> Future[T]:
        """Queue a question; the future gets its answer or its exception. Any thread."""
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question())
            except BaseException as error:  # noqa: BLE001 - it belongs to the asker
                future.set_exception(error)

        self.put(answer, event)
        return future

    def run(self) -> None:
        """Run everything that is queued now. Engine thread."""
        self._witness.looked()
        if self._next is not None:
            entry, self._next = self._next, None
            self._run(entry)
        for _ in range(self._queue.qsize()):
            self._run(self._queue.get_nowait())

    def _run(self, entry: Entry) -> None:
        action, event = entry
        if event is not None:
            self._witness.saw(event)
        action()

    def wait(self) -> None:
        """Sleep until an action is queued. Engine thread."""
        if self._next is None:
            self._next = self._queue.get()
