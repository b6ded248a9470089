"""The newest steps, for people who look."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from device_service.records import StepRecord


class StepRing:
    """A bounded ring of step records.

    The engine thread appends; any thread reads. Appending costs the same
    whether or not somebody looks, but for one call of the listener.
    """

    def __init__(self, capacity: int) -> None:
        self._records: deque[StepRecord] = deque(maxlen=capacity)
        self._listener: Callable[[StepRecord], None] | None = None

    def append(self, record: StepRecord) -> None:
        """Record a step. Engine thread."""
        self._records.append(record)
        listener = self._listener
        if listener is not None:
            listener(record)

    def newest(self, limit: int) -> list[StepRecord]:
        """Up to `limit` newest records, oldest first. Any thread."""
        # copy() is one call under the GIL; iterating beside an append would raise.
        records = self._records.copy()
        return list(islice(records, max(0, len(records) - limit), None))

    def set_listener(self, listener: Callable[[StepRecord], None] | None) -> None:
        """Call `listener` on the engine thread for every record from now on."""
        self._listener = listener
