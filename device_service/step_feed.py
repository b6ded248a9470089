"""Hands every step record to those who watch. Event loop only.

The engine thread pays one wake-up per step while somebody watches, and nothing
otherwise. A watcher that reads slowly loses the oldest records it has not read,
and is told how many.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from device_service.handle import StepLog
from device_service.records import StepRecord
from ttserve.errors import TTServeError

logger = logging.getLogger(__name__)

MAX_UNREAD = 1024
"""Records that wait for one watcher."""

Filter = Callable[[StepRecord], bool]


class Watcher:
    """One reader of the feed."""

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._unread: deque[StepRecord] = deque()
        self._lost = 0
        self._changed = asyncio.Event()
        self._end: TTServeError | None = None

    def offer(self, record: StepRecord) -> None:
        """Keep a record for the reader, if it wants it."""
        if not self._wanted(record):
            return
        if len(self._unread) == MAX_UNREAD:
            self._unread.popleft()
            self._lost += 1
        self._unread.append(record)
        self._changed.set()

    def end(self, why: TTServeError) -> None:
        """There are no more records than those that have been offered."""
        self._end = why
        self._changed.set()

    async def take(self) -> tuple[int, StepRecord]:
        """Wait for the next record, and how many before it were lost.

        Raises the end's reason after the last record.
        """
        while not self._unread:
            if self._end is not None:
                raise self._end.with_traceback(None)  # all watchers share it
            self._changed.clear()
            await self._changed.wait()
        lost, self._lost = self._lost, 0
        return lost, self._unread.popleft()


class StepFeed:
    """The watchers of one engine's steps."""

    def __init__(self, steps: StepLog) -> None:
        self._steps = steps
        self._loop = asyncio.get_running_loop()
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    def join(self, wanted: Filter) -> Watcher:
        """Watch from now on, until `leave`."""
        watcher = Watcher(wanted)
        if not self._watchers:
            self._steps.add_listener(self._tell)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no longer."""
        self._watchers.discard(watcher)
        if not self._watchers:
            self._steps.remove_listener(self._tell)

    def end(self, why: TTServeError) -> None:
        """Send those who watch away, with this reason."""
        for watcher in self._watchers:
            watcher.end(why)

    def _tell(self, record: StepRecord) -> None:
        """Pass a record over from the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._publish, record)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            logger.debug("step %d after the end", record.number)

    def _publish(self, record: StepRecord) -> None:
        for watcher in self._watchers:
            watcher.offer(record)
