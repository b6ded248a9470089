"""The simulated model's paged KV cache: a running hash in every slot.

The arithmetic is that of `sim_tokens`, on arrays; numpy's uint64 wraps, which
is the modulus. All lanes share one array: lane l owns blocks
[l * num_blocks, (l + 1) * num_blocks).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_service.models.sim_tokens import (
    MASK,
    MIX_LAST_SHIFT,
    MIX_STEPS,
    MULTIPLIER,
    SEED,
    TOKEN_FACTOR,
)

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

_INVERSE = pow(MULTIPLIER, -1, 1 << 64)
_A = np.array([MULTIPLIER], dtype=np.uint64)
_TOKEN_FACTOR = np.array([TOKEN_FACTOR], dtype=np.uint64)


def mix_array(values: Hashes) -> Hashes:
    """`sim_tokens.mix`, element by element."""
    for shift, factor in MIX_STEPS:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(MIX_LAST_SHIFT))


class SimCache:
    """Hashes per (block, slot), and two sums per block that make reading cheap.

    A block's sums are those of mix(h) and of (2 * slot + 1) * mix(h) over all
    its slots, kept up to date by every write. Only the mesh's worker uses it.
    """

    def __init__(self, lanes: int, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.hashes = np.zeros((lanes * num_blocks, block_size), dtype=np.uint64)
        self._weights = (2 * np.arange(block_size) + 1).astype(np.uint64)
        start = mix_array(self.hashes[:1])
        self._plain = np.full(lanes * num_blocks, start.sum(), dtype=np.uint64)
        self._weighted = np.full(
            lanes * num_blocks, (start * self._weights).sum(), dtype=np.uint64
        )
        self._powers = _powers(MULTIPLIER, 256)
        self._inverses = _powers(_INVERSE, 256)

    def extend(self, table: Indices, start: int, tokens: Indices) -> int:
        """Write one row's tokens at [start, start + len) and return the digest.

        `table` is the row's blocks in the shared array.
        """
        length = len(tokens)
        self._grow(length)
        positions = np.arange(start, start + length)
        items = mix_array(
            tokens.astype(np.uint64) * _TOKEN_FACTOR + positions.astype(np.uint64)
        )
        before = self._before(table[None, :], np.array([start]))
        running = self._powers[:length] * (
            _A * before + np.cumsum(self._inverses[:length] * items, dtype=np.uint64)
        )
        blocks = table[positions // self.block_size]
        self.hashes[blocks, positions % self.block_size] = running
        self._sum_up(np.unique(blocks))
        end = np.array([start + length - 1])
        return int(self._digests(table[None, :], end)[0])

    def advance(self, tables: Indices, positions: Indices, tokens: Indices) -> Hashes:
        """Write one token per row and return the rows' digests."""
        items = mix_array(
            tokens.astype(np.uint64) * _TOKEN_FACTOR + positions.astype(np.uint64)
        )
        running = _A * self._before(tables, positions) + items
        rows = np.arange(len(positions))
        blocks = tables[rows, positions // self.block_size]
        self.hashes[blocks, positions % self.block_size] = running
        self._sum_up(blocks)
        return self._digests(tables, positions)

    def _before(self, tables: Indices, positions: Indices) -> Hashes:
        """The hash each row runs on from."""
        previous = np.maximum(positions - 1, 0)
        rows = np.arange(len(positions))
        blocks = tables[rows, previous // self.block_size]
        found: Hashes = self.hashes[blocks, previous % self.block_size]
        found[positions == 0] = SEED
        return found

    def _digests(self, tables: Indices, positions: Indices) -> Hashes:
        """Full blocks by their sums, the last one slot by slot up to the position."""
        size = self.block_size
        last = positions // size
        full = tables[:, : int(last.max())]
        numbers = np.arange(full.shape[1])
        offsets = (2 * size * numbers).astype(np.uint64)
        sums = self._weighted[full] + offsets * self._plain[full]
        sums = np.where(numbers < last[:, None], sums, np.uint64(0))
        values = mix_array(self.hashes[tables[np.arange(len(last)), last]])
        weights = (2 * size * last).astype(np.uint64)[:, None] + self._weights
        live = np.arange(size) <= (positions % size)[:, None]
        tail = np.where(live, weights * values, np.uint64(0))
        parts = np.concatenate([sums, tail], axis=1)
        digests: Hashes = parts.sum(axis=1, dtype=np.uint64)
        return digests

    def _sum_up(self, blocks: Indices) -> None:
        values = mix_array(self.hashes[blocks])
        self._plain[blocks] = values.sum(axis=1, dtype=np.uint64)
        self._weighted[blocks] = (values * self._weights).sum(axis=1, dtype=np.uint64)

    def _grow(self, length: int) -> None:
        if length > len(self._powers):
            self._powers = _powers(MULTIPLIER, 2 * length)
            self._inverses = _powers(_INVERSE, 2 * length)


def _powers(base: int, count: int) -> Hashes:
    """base**0 ... base**(count - 1), modulo 2**64."""
    factors = np.full(count, base & MASK, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
