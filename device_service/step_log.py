"""The newest steps, for people who look."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from device_service.records import StepRecord

StepListener = Callable[[StepRecord], None]
"""Called on the engine thread; must return at once."""


class StepRing:
    """A bounded ring of step records.

    The engine thread appends; any thread reads. Appending costs the same
    whether or not somebody looks, but for one call of each listener.
    """

    def __init__(self, capacity: int) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)
        # Replaced as a whole, so that the engine thread needs no lock to go through it.
        self._listeners: tuple[StepListener, ...] = ()

    def append(self, record: StepRecord) -> None:
        """Record a step. Engine thread."""
        self._records.append(record)
        for listener in self._listeners:
            listener(record)

    def newest(self, limit: int) -> list[StepRecord]:
        """Up to `limit` newest records, oldest first. Any thread."""
        # copy() is one call under the GIL; iterating beside an append would raise.
        records = self._records.copy()
        return list(islice(records, max(0, len(records) - limit), None))

    def add_listener(self, listener: StepListener) -> None:
        """Call `listener` on the engine thread for every record from now on.

        Event loop, as `remove_listener`.
        """
        self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: StepListener) -> None:
        """Call `listener` no longer."""
        self._listeners = tuple(one for one in self._listeners if one != listener)
