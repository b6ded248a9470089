"""What the prefix cache of one lane holds, as a numbered log.

The log keeps its newest batches, and beside them what is cached now. Whoever has
fallen behind what is kept, or is new, gets a snapshot and goes on from there.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)

MAX_BATCH_TOKENS = 1 << 16
"""Most tokens of stored blocks in one batch, some 300 kB as a message."""

MAX_KEPT_BATCHES = 1024
MAX_KEPT_TOKENS = 1 << 20

FULL_ATTENTION = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Groups whose blocks say how much of a prompt is cached. A window's come and go
with its position, so they are not reported.
"""


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A full block: its hash, the hash of the block before it, and its tokens.

    Hashes are the low 64 bits of vLLM's. `salt` is the cache salt of the request
    that stored the block or one of those before it, "" for none.
    """

    hash: int
    parent: int | None
    token_ids: array[int]
    salt: str


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks that were cached, each after its parent."""

    blocks: tuple[CachedBlock, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy each of blocks that are not cached any longer."""

    hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is cached any longer."""


BlockEvent = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Which part of a snapshot a batch is; `blocks` counts the whole, with copies."""

    index: int
    count: int
    blocks: int


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """Events of one lane. Numbers start at 1 and have no gaps.

    A snapshot's last part has the number of the newest event that is in it, and
    those before it the numbers below.
    """

    number: int
    unix_seconds: float
    events: tuple[BlockEvent, ...]
    snapshot: SnapshotPart | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the blocks that it stores."""
        return sum(map(_tokens, self.events))


class BlockLog:
    """The log of one lane and what its prefix cache holds. Event loop only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._group: int | None = None
        # By hash: the block, and how many blocks of the pool hold it.
        self._cached: dict[int, tuple[CachedBlock, int]] = {}
        self._kept: deque[BlockBatch] = deque()
        self._kept_tokens = 0
        self._last = 0
        self._append(Cleared())

    @property
    def last_number(self) -> int:
        """Number of the newest batch."""
        return self._last

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Log what vLLM's block pool says has happened."""
        pending: list[BlockEvent] = []
        tokens = 0
        for event in self._translated(events):
            more = _tokens(event)
            if pending and tokens + more > MAX_BATCH_TOKENS:
                self._append(*pending)
                pending, tokens = [], 0
            pending.append(event)
            tokens += more
        if pending:
            self._append(*pending)

    def since(self, number: int) -> list[BlockBatch]:
        """Batches from this number on, oldest first; a snapshot if that is gone.

        It is gone, too, if it has yet to come: it is another life's number.
        """
        if self._kept[0].number <= number <= self._last + 1:
            return list(islice(self._kept, number - self._kept[0].number, None))
        return list(self._snapshot())

    def _translated(self, events: Iterable[KVCacheEvent]) -> Iterator[BlockEvent]:
        for event in events:
            if isinstance(event, BlockStored):
                yield from self._store(event)
            elif isinstance(event, BlockRemoved):
                if event.group_idx == self._group:
                    yield self._remove(event)
            elif isinstance(event, AllBlocksCleared):
                self._cached.clear()
                yield Cleared()

    def _store(self, event: BlockStored) -> Iterator[Stored]:
        if self._group is None and event.kv_cache_spec_kind in FULL_ATTENTION:
            self._group = event.group_idx
        if event.group_idx != self._group or not event.block_hashes:
            return
        blocks = []
        parent = _low_bits(event.parent_block_hash)
        salt = self._salt(event, parent)
        for place, long_hash in enumerate(event.block_hashes):
            start = place * event.block_size
            tokens = array("I", event.token_ids[start : start + event.block_size])
            known = _low_bits(long_hash)
            assert known is not None
            block = CachedBlock(known, parent, tokens, salt)
            _, copies = self._cached.pop(known, (block, 0))
            self._cached[known] = (block, copies + 1)
            blocks.append(block)
            parent = known
        yield from map(Stored, _pieces(blocks))

    def _salt(self, event: BlockStored, parent: int | None) -> str:
        """vLLM names the salt with a request's first block only."""
        if parent in self._cached:
            return self._cached[parent][0].salt
        keys = (event.extra_keys or [None])[0] or ()
        return next((key for key in keys if isinstance(key, str)), "")

    def _remove(self, event: BlockRemoved) -> Removed:
        hashes = []
        for long_hash in event.block_hashes:
            known = _low_bits(long_hash)
            assert known is not None
            hashes.append(known)
            held = self._cached.pop(known, None)
            if held is not None and held[1] > 1:
                self._cached[known] = (held[0], held[1] - 1)
        return Removed(tuple(hashes))

    def _append(self, *events: BlockEvent) -> None:
        self._last += 1
        batch = BlockBatch(self._last, self._clock(), events)
        self._kept.append(batch)
        self._kept_tokens += batch.tokens
        while len(self._kept) > 1 and (
            len(self._kept) > MAX_KEPT_BATCHES or self._kept_tokens > MAX_KEPT_TOKENS
        ):
            self._kept_tokens -= self._kept.popleft().tokens

    def _snapshot(self) -> Iterator[BlockBatch]:
        """What is cached, every parent before its children, one entry per copy.

        Each batch of the log stores at most as much as a part holds, so there are
        enough numbers for the parts.
        """
        blocks = list(self._parents_first())
        pieces = list(_pieces(blocks)) or [()]
        now = self._clock()
        for index, piece in enumerate(pieces):
            events: list[BlockEvent] = [] if index else [Cleared()]
            if piece:
                events.append(Stored(piece))
            part = SnapshotPart(index, len(pieces), len(blocks))
            number = self._last - len(pieces) + 1 + index
            yield BlockBatch(number, now, tuple(events), part)

    def _parents_first(self) -> Iterator[CachedBlock]:
        seen: set[int] = set()
        for start in self._cached:
            chain = []
            known: int | None = start
            while known is not None and known not in seen and known in self._cached:
                seen.add(known)
                chain.append(self._cached[known])
                known = chain[-1][0].parent
            for block, copies in reversed(chain):
                yield from (block,) * copies


def _tokens(event: BlockEvent) -> int:
    if not isinstance(event, Stored):
        return 0
    return sum(len(block.token_ids) for block in event.blocks)


def _low_bits(block_hash: bytes | int | None) -> int | None:
    """64 bits of a hash, as vLLM's own events have them."""
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-8:], "big")
    return block_hash


def _pieces(blocks: Sequence[CachedBlock]) -> Iterator[tuple[CachedBlock, ...]]:
    """Runs of blocks that fit a batch."""
    if not blocks:
        return
    size = max(1, MAX_BATCH_TOKENS // max(1, len(blocks[0].token_ids)))
    for start in range(0, len(blocks), size):
        yield tuple(blocks[start : start + size])
