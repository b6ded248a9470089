"""Which slots hold a request, and how far each has come (contract 2.6)."""

from __future__ import annotations

from dataclasses import dataclass

from device_service.models.probe.breach import Judge
from device_service.models.probe.facts import Facts


@dataclass(slots=True)
class Slot:
    """A request's place. `position`: tokens whose KV is written or on its way.

    `tenant` tells apart the requests that held the slot one after another.
    """

    position: int
    tenant: int


class Slots:
    """Every slot of the adapter, by merged row."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._held: dict[int, Slot] = {}
        self._tenants = 0

    def layout(self, judge: Judge, rows: list[int]) -> tuple[tuple[int, int], ...]:
        """Who is where among these rows, comparable between two decodes."""
        for row in rows:
            judge.expect(
                row in self._held,
                "1.8",
                f"row {row} is decoded but nothing was prefilled there",
            )
        return tuple((row, self._held[row].tenant) for row in rows)

    def prefill(self, judge: Judge, slot: int, start: int, end: int) -> None:
        """A chunk goes on where the slot's last one ended, or begins a request."""
        facts = self._facts
        held = self._held.get(slot)
        judge.expect(
            0 <= start < end <= facts.max_seq_len,
            "1.7",
            f"slot {slot} is given tokens [{start}, {end}) of at most "
            f"{facts.max_seq_len}",
        )
        if held is None:
            judge.expect(
                start == 0 or facts.capabilities.supports_prefix_caching,
                "1.13",
                f"slot {slot} begins at {start} without supports_prefix_caching",
            )
            judge.expect(
                start % facts.smallest_block == 0,
                "1.7",
                f"slot {slot} begins at {start}, inside a block of "
                f"{facts.smallest_block}",
            )
            self._tenants += 1
            self._held[slot] = Slot(end, self._tenants)
            return
        judge.expect(
            start == held.position,
            "2.6",
            f"slot {slot} is held by a request that has come to {held.position}, "
            f"but tokens [{start}, {end}) are prefilled into it",
        )
        judge.expect(
            facts.capabilities.supports_chunked_prefill,
            "1.13",
            f"slot {slot} gets a second chunk without supports_chunked_prefill",
        )
        held.position = end

    def decode(self, judge: Judge, row: int, position: int, *, reloads: bool) -> None:
        """A decode goes on where its row has come to.

        A reload may repeat a position, never skip one; without a reload the
        device goes on by itself.
        """
        held = self._held[row]
        judge.expect(
            position <= held.position if reloads else position == held.position,
            "1.10",
            f"row {row} is at position {position} but its KV ends at {held.position}",
        )

    def advance(self, row: int, position: int) -> None:
        """The decode of `row` at `position` was accepted."""
        self._held[row].position = position + 1

    def release(self, judge: Judge, slot: int) -> None:
        """A request left."""
        judge.expect(
            slot in self._held, "1.12", f"slot {slot} holds no request that could leave"
        )
        del self._held[slot]
