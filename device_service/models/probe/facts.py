"""What the probe knows about an adapter: sizes, declarations, hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from device_service.models.capabilities import Capabilities


@dataclass(slots=True)
class Facts:
    """Filled in as calls tell them; a 0 is not known yet.

    rows: of all lanes. width: columns of a page table, known from warm-up or the
    first step. layers: decoder layers that keep something. num_blocks: of one
    lane's pool, null block included. block_size: the largest of all layers, which
    may differ, and smallest_block the smallest. windows: some
    layers may forget the blocks that a sliding window has left.
    """

    capabilities: Capabilities
    contract: int
    rows: int
    lanes: int
    max_seq_len: int
    vocabulary: int
    windows: bool = False
    layers: int = 0
    num_blocks: int = 0
    block_size: int = 0
    smallest_block: int = 0
    width: int = 0
    kv_cache: Any = None

    @property
    def rows_per_lane(self) -> int:
        """Rows of one lane."""
        return self.rows // self.lanes

    def blocks(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)
