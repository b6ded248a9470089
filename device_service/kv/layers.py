"""Where the keys and values of a model's layers lie, for models that say so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """One decoder layer of a model that describes its own (contract 1.4, 2.20).

    group: whose page table it reads. tensor: its buffer, which it shares with the
    layers of other groups that have the same one; block ids of different groups
    never meet in it. block_size: tokens per block, which groups may differ in.
    """

    group: int
    tensor: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes of keys and values of one block."""
        elements = 2 * self.num_kv_heads * self.head_size * self.block_size
        return elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PageTables:
    """The page tables of all rows, written by the lanes. Engine thread.

    first: int32 [rows, W], that of the first group and mostly the only one.
    more: int32 [groups - 1, rows, W], those of the others. Unused cells are 0.
    """

    first: npt.NDArray[np.int32]
    more: npt.NDArray[np.int32]

    @classmethod
    def zero(cls, groups: int, rows: int, width: int) -> PageTables:
        """Tables of rows without requests."""
        cells = np.zeros((groups, rows, width), dtype=np.int32)
        return cls(cells[0], cells[1:])

    def __len__(self) -> int:
        return len(self.first)

    def of_rows(self, begin: int, end: int) -> PageTables:
        """A view of some rows."""
        return PageTables(self.first[begin:end], self.more[:, begin:end])
