"""Batches of a lane's log -> KvEventBatch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from smg_grpc_proto.generated import common_pb2

from device_service.gateway.block_log import (
    BlockBatch,
    BlockEvent,
    CachedBlock,
    Removed,
    Stored,
)

_SIGN = 1 << 63


def batch_message(lane: int, batch: BlockBatch) -> Any:
    """One message; lanes are the protocol's data-parallel ranks."""
    message = common_pb2.KvEventBatch(
        sequence_number=batch.number,
        timestamp=batch.unix_seconds,
        events=chain.from_iterable(map(_events, batch.events)),
        dp_rank=lane,
    )
    if batch.snapshot is not None:
        message.snapshot.index = batch.snapshot.index
        message.snapshot.count = batch.snapshot.count
        message.snapshot.blocks = batch.snapshot.blocks
    return message


def _events(event: BlockEvent) -> Iterator[Any]:
    if isinstance(event, Stored):
        for run in _runs(event.blocks):
            yield common_pb2.KvCacheEvent(stored=_stored(run))
    elif isinstance(event, Removed):
        yield common_pb2.KvCacheEvent(
            removed=common_pb2.KvBlocksRemoved(
                block_hashes=map(_signed, event.hashes),
                tier=common_pb2.KV_CACHE_TIER_DEVICE,
                locality=common_pb2.KV_CACHE_LOCALITY_LOCAL,
            )
        )
    else:
        yield common_pb2.KvCacheEvent(cleared=common_pb2.KvCacheCleared())


def _runs(blocks: Sequence[CachedBlock]) -> Iterator[list[CachedBlock]]:
    """Blocks of which each is the parent of the next: one message names one parent."""
    run: list[CachedBlock] = []
    for block in blocks:
        if run and block.parent != run[-1].hash:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _stored(run: Sequence[CachedBlock]) -> Any:
    first = run[0]
    return common_pb2.KvBlocksStored(
        blocks=[
            common_pb2.KvBlock(
                block_hash=_signed(block.hash),
                token_ids=block.token_ids,
                block_size=len(block.token_ids),
            )
            for block in run
        ],
        parent_block_hash=None if first.parent is None else _signed(first.parent),
        tier=common_pb2.KV_CACHE_TIER_DEVICE,
        locality=common_pb2.KV_CACHE_LOCALITY_LOCAL,
        cache_salt=first.salt or None,
    )


def _signed(block_hash: int) -> int:
    """The same 64 bits as the protocol's int64."""
    return block_hash - (1 << 64) if block_hash & _SIGN else block_hash
