"""Requests of one lane that wait for a row."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from device_service.sequence import Sequence


class WaitingQueue:
    """Waiting requests in the order in which they will get a row.

    The order is (priority, arrival number), priority 0 for all under
    first-come scheduling. The number is given once, on admission, so a
    preempted request returns in front of everything that came after it,
    under either policy, and requests whose grammar is still being compiled
    keep their place without holding up the others.
    """

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def add(self, sequence: Sequence) -> None:
        """Put a new or preempted request in its place."""
        bisect.insort(self._items, sequence, key=lambda item: item.order)

    def remove(self, sequence: Sequence) -> None:
        """Take a request out, wherever it stands."""
        self._items.remove(sequence)

    def first_ready(self) -> Sequence | None:
        """The first request that does not await its grammar."""
        return next((item for item in self._items if not item.awaits_grammar), None)
