"""Whose blocks are whose, as an adapter sees it: from page tables and releases alone.

A block that a step writes belongs to one row of its lane. Rows share a block only
as a prefix that was complete before the later of them began; then it stands at the
same place in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from device_service.models.sim_adapter import SimAdapter


@dataclass
class Held:
    """What a row has been given: `shared` leading blocks are another's work."""

    shared: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class BlockLedger:
    """Follows the calls of one adapter; what is wrong is in `faults`."""

    def __init__(self, *, rows_per_lane: int, block_size: int) -> None:
        self._rows_per_lane = rows_per_lane
        self._block_size = block_size
        self._rows: dict[int, Held] = {}
        self.faults: list[str] = []

    @property
    def occupied(self) -> set[int]:
        """Merged rows that hold a request."""
        return set(self._rows)

    def used_blocks(self, lane: int) -> int:
        """Different blocks that the rows of a lane hold."""
        return len({block for _, held in self._of(lane) for block in held.blocks})

    def prefill(
        self, slots: Iterable[int], starts: Any, ends: Any, tables: Any
    ) -> None:
        """Chunks [start, end) of the requests in these rows."""
        chunks = list(zip(slots, starts, ends, tables, strict=True))
        newcomers = [slot for slot, *_ in chunks if slot not in self._rows]
        for slot, start, end, table in chunks:
            if slot in newcomers:
                self._rows[slot] = Held(int(start) // self._block_size)
            self._take(slot, int(start), int(end), table)
        for slot, _, end, _ in chunks:
            self._rows[slot].computed = int(end)
        for slot in newcomers:
            first = slot - slot % self._rows_per_lane
            self._expect(
                all(row in self._rows for row in range(first, slot)),
                f"row {slot} was given although a lower one was free",
            )

    def decode(self, positions: Any, tables: Any) -> None:
        """One token for every row whose position is not -1."""
        rows = [(row, int(p)) for row, p in enumerate(positions) if p >= 0]
        for row, position in rows:
            self._take(row, position, position + 1, tables[row])
        for row, position in rows:
            self._rows[row].computed = position + 1

    def release(self, row: int) -> None:
        """The request left its row."""
        self._expect(row in self._rows, f"row {row} was released but is free")
        self._rows.pop(row, None)

    def _take(self, row: int, start: int, end: int, table: Any) -> None:
        size = self._block_size
        named = [int(block) for block in table[: -(-end // size)]]
        held = self._rows[row]
        known = len(held.blocks)
        self._expect(0 not in named, f"row {row} computes in the null block: {named}")
        self._expect(
            named[:known] == held.blocks, f"row {row}: {held.blocks} became {named}"
        )
        self._expect(
            start >= held.shared * size,
            f"row {row} writes at {start}, into a prefix of {held.shared} blocks",
        )
        for place in range(known, len(named)):
            self._new_block(row, place, named[place], shared=place < held.shared)
        held.blocks = named

    def _new_block(self, row: int, place: int, block: int, *, shared: bool) -> None:
        for other, held in self._of(row // self._rows_per_lane):
            if block not in held.blocks or other == row:
                continue
            complete = max(held.shared, held.computed // self._block_size)
            self._expect(
                shared and held.blocks.index(block) == place < complete,
                f"block {block} is in rows {other} and {row}",
            )
        own = self._rows[row].blocks
        self._expect(block not in own, f"block {block} is twice in row {row}")

    def _of(self, lane: int) -> Iterable[tuple[int, Held]]:
        rows = self._rows.items()
        return [item for item in rows if item[0] // self._rows_per_lane == lane]

    def _expect(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


def kept_by(ledger: BlockLedger) -> type[SimAdapter]:
    """The simulated adapter, with its calls entered in a ledger."""

    class Kept(SimAdapter):
        def prefill_forward(self, **call: Any) -> Any:
            ends, tables = call["prompt_lens"], call["page_table"]
            ledger.prefill(call["empty_slots"], call["start_pos"], ends, tables)
            return super().prefill_forward(**call)

        def decode_forward(self, **call: Any) -> Any:
            ledger.decode(call["start_pos"], call["page_table"])
            return super().decode_forward(**call)

        def release_request(self, slot: int) -> None:
            ledger.release(slot)

    return Kept
