"""What a gateway makes of block events: an index of prompts, by their tokens.

It follows the protocol's own words: batches of a rank have consecutive numbers, a
snapshot replaces what was known and sets the number, a block may be held several
times and is gone when its last copy is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Entry:
    """A block that is held `copies` times."""

    parent: int | None
    tokens: tuple[int, ...]
    copies: int = 1


@dataclass
class BlockIndex:
    """The blocks of one rank."""

    number: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    snapshots: int = 0

    def take(self, batch: Any) -> None:
        """Apply one KvEventBatch."""
        if batch.HasField("snapshot"):
            if batch.snapshot.index == 0:
                assert batch.events[0].WhichOneof("data") == "cleared"
            else:
                assert batch.sequence_number == self.number + 1
            self.snapshots += batch.snapshot.index + 1 == batch.snapshot.count
        else:
            assert batch.sequence_number == self.number + 1, "a gap, or a duplicate"
        self.number = batch.sequence_number
        for event in batch.events:
            match event.WhichOneof("data"):
                case "stored":
                    self._store(event.stored)
                case "removed":
                    for block_hash in event.removed.block_hashes:
                        self._remove(block_hash)
                case "cleared":
                    self.entries.clear()
        if batch.HasField("snapshot"):
            done = batch.snapshot.index + 1 == batch.snapshot.count
            assert not done or batch.snapshot.blocks == self.copies

    @property
    def copies(self) -> int:
        """Blocks of the pool that hold something."""
        return sum(entry.copies for entry in self.entries.values())

    def cached_tokens(self, prompt: list[int], block_size: int) -> int:
        """How much of a prompt the engine will find; its last token it computes."""
        children = {(e.parent, e.tokens): known for known, e in self.entries.items()}
        parent, tokens = None, 0
        while tokens + block_size < len(prompt):
            content = tuple(prompt[tokens : tokens + block_size])
            found = children.get((parent, content))
            if found is None:
                break
            parent, tokens = found, tokens + block_size
        return tokens

    def _store(self, stored: Any) -> None:
        parent = (
            stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        )
        for block in stored.blocks:
            tokens = tuple(block.token_ids)
            assert len(tokens) == block.block_size
            known = self.entries.get(block.block_hash)
            if known is None:
                self.entries[block.block_hash] = Entry(parent, tokens)
            else:
                assert (known.parent, known.tokens) == (parent, tokens)
                known.copies += 1
            parent = block.block_hash

    def _remove(self, block_hash: int) -> None:
        entry = self.entries[block_hash]
        entry.copies -= 1
        if not entry.copies:
            del self.entries[block_hash]
