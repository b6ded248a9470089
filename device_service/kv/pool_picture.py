"""The state of vLLM's block pool, taken and put back.

A recording begins with it: which requests hold which blocks, which blocks hold a
cached prefix, and in which order free ones are given out decide every later hit
and every preemption. This is the one place that knows how vLLM keeps them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId, KVCacheBlock


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of one request, per KV group; 0 is the null block.

    published: how many of them may be shared, per group, None before the first
    allocation has said so.
    """

    block_ids: tuple[tuple[int, ...], ...]
    published: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """free: ids in the order in which they will be given out. cached_keys: a hash and
    group, and parallel to it in cached_blocks the block to which it leads; of several
    the first is found. held: per request id.

    Pools have many blocks, so they lie in arrays, some ten bytes for each.
    """

    free: Sequence[int]
    cached_keys: Sequence[bytes]
    cached_blocks: Sequence[int]
    held: Mapping[str, HeldBlocks]


def take_picture(manager: KVCacheManager) -> PoolPicture:
    """The pool as it is. Engine thread; some 0.1 us for each block."""
    pool = manager.block_pool
    free, keys, blocks = array("I"), [], array("I")
    block = pool.free_block_queue.fake_free_list_head.next_free_block
    while block is not None and block.block_id >= 0:  # the list's tail is -1
        free.append(block.block_id)
        block = block.next_free_block
    cached = pool.cached_block_hash_to_block._cache  # noqa: SLF001 - has no reader
    for key, found in cached.items():
        if isinstance(found, KVCacheBlock):
            keys.append(key)
            blocks.append(found.block_id)
        else:
            keys.extend([key] * len(found))
            blocks.extend(found)
    managers = manager.coordinator.single_type_managers
    return PoolPicture(
        free=free,
        cached_keys=keys,
        cached_blocks=blocks,
        held={
            request_id: HeldBlocks(
                tuple(map(tuple, manager.get_block_ids(request_id))),
                tuple(group.num_cached_block.get(request_id) for group in managers),
            )
            for request_id in [*managers[0].req_to_blocks]
        },
    )


def put_back(manager: KVCacheManager, picture: PoolPicture) -> None:
    """Make the pool of a new manager what the picture shows."""
    pool = manager.block_pool
    queue = pool.free_block_queue
    queue.popleft_n(queue.num_free_blocks)
    for block_id in picture.free:
        queue.append(pool.blocks[block_id])
    for key, block_id in zip(picture.cached_keys, picture.cached_blocks, strict=True):
        hash_and_group, block = BlockHashWithGroupId(key), pool.blocks[block_id]
        block.set_block_hash(hash_and_group, num_tokens=0)
        pool.cached_block_hash_to_block.insert(hash_and_group, block)
    references: Counter[int] = Counter()
    for request_id, held in picture.held.items():
        for group, ids, published in zip(
            manager.coordinator.single_type_managers,
            held.block_ids,
            held.published,
            strict=True,
        ):
            group.req_to_blocks[request_id] = [pool.blocks[i] for i in ids]
            if published is not None:
                group.num_cached_block[request_id] = published
            references.update(i for i in ids if i)
    for block_id, count in references.items():
        pool.blocks[block_id].ref_cnt = count
