"""Paged KV blocks of one lane: vLLM's KVCacheManager behind six verbs.

Block ids belong to the lane and repeat across lanes. Block 0 is the null
block. A block is published to the prefix cache only when the outcome of the
step that wrote it is applied (`publish`), never when the step is planned: a
step that fails would otherwise leave hashes of blocks that nobody wrote, and a
request could hit blocks of its own step (COMPOSING coupling 3 and 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm.config import VllmConfig
from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import BlockHash, resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig
from vllm.v1.request import Request

from device_service.kv.groups import most_in_flight
from device_service.kv.layers import PageTables
from device_service.kv.pool_picture import PoolPicture, put_back, take_picture

BlockHasher = Callable[[Request], list[BlockHash]]
"""Hashes of a request's full blocks beyond those in its `block_hashes`."""


BlockEventSink = Callable[[list[KVCacheEvent]], None]
"""Takes what happened to cached blocks. Engine thread; must not wait."""


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Blocks of a prefix that is already computed, and how many tokens they hold."""

    blocks: KVCacheBlocks
    num_tokens: int


class LaneKV:
    """The block pool of one lane and its page tables. Engine thread only."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        *,
        tables: PageTables,
        block_hasher: BlockHasher | None,
        on_block_events: BlockEventSink | None = None,
    ) -> None:
        """`tables`, of the lane's rows, zero, are kept up to date from here on.

        `block_hasher` hashes what is new of a request; None: no prefix cache.
        `on_block_events` hears what is cached and evicted; None: nobody does.
        """
        scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(
            kv_cache_config, vllm_config
        )
        self._manager = KVCacheManager(
            kv_cache_config=kv_cache_config,
            max_model_len=vllm_config.model_config.max_model_len,
            scheduler_block_size=scheduler_block_size,
            hash_block_size=hash_block_size,
            max_in_flight_tokens=most_in_flight(vllm_config),
            enable_caching=bool(vllm_config.cache_config.enable_prefix_caching),
            watermark=vllm_config.scheduler_config.watermark,
            enable_kv_cache_events=on_block_events is not None,
        )
        self._on_block_events = on_block_events
        self._reserve_full_prompt = (
            vllm_config.scheduler_config.scheduler_reserve_full_isl
        )
        self._block_size = scheduler_block_size
        self._block_hasher = block_hasher
        self._tables = [tables.first, *tables.more]
        self._group_block_sizes = [
            group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups
        ]
        # A sliding window leaves blocks behind, which then belong to others.
        self._forgets = not all(
            isinstance(group.kv_cache_spec, FullAttentionSpec)
            for group in kv_cache_config.kv_cache_groups
        )
        # Per group and row: blocks in its table.
        self._widths = [[0] * len(tables) for _ in self._tables]
        # Per row: blocks that every group has, and how many of them are published.
        # Most decode steps stay inside a block, so these spare them the manager.
        self._width = [0] * len(tables)
        self._published = [0] * len(tables)
        self.total_blocks = kv_cache_config.num_blocks - 1

    @property
    def groups(self) -> int:
        """KV groups: how many blocks a row needs when it is full."""
        return len(self._tables)

    @property
    def free_blocks(self) -> int:
        """Blocks that no request references; cached prefixes are among them."""
        return int(self._manager.block_pool.get_num_free_blocks())

    @property
    def usage(self) -> float:
        """Share of blocks that requests reference, 0.0 to 1.0."""
        return float(self._manager.usage)

    def begin_step(self) -> None:
        """Tell the manager that a new step is being planned."""
        self._manager.new_step_starts()

    def find_prefix(self, request: Request) -> PrefixHit:
        """Look up how much of the request is computed already."""
        self._hash_new_blocks(request)
        blocks, num_tokens, boundary = self._manager.get_computed_blocks(request)
        request.shared_prefix_boundary = boundary
        return PrefixHit(blocks, num_tokens)

    def admit(
        self,
        request: Request,
        hit: PrefixHit,
        num_tokens: int,
        row: int,
        *,
        others_scheduled: bool,
    ) -> bool:
        """Give a waiting request its prefix and room for `num_tokens` more.

        False, and nothing has changed, when there is no room; by default the
        whole prompt must fit, not only its first chunk.
        """
        new = self._manager.allocate_slots(
            request,
            num_tokens,
            num_new_computed_tokens=hit.num_tokens,
            new_computed_blocks=hit.blocks,
            delay_cache_blocks=True,
            full_sequence_must_fit=self._reserve_full_prompt,
            has_scheduled_reqs=others_scheduled,
        )
        if new is None:
            return False
        self._append(row, self.block_ids(request))
        self._published[row] = hit.num_tokens // self._block_size
        return True

    def is_full(self, request: Request, row: int) -> bool:
        """Whether the row's next token needs another block."""
        return request.num_computed_tokens >= self._width[row] * self._block_size

    def extend(self, request: Request, num_tokens: int, row: int) -> bool:
        """Make room for `num_tokens` more; False, unchanged, when there is none."""
        end = request.num_computed_tokens + num_tokens
        if end <= self._width[row] * self._block_size:
            return True
        new = self._manager.allocate_slots(request, num_tokens, delay_cache_blocks=True)
        if new is None:
            return False
        if self._forgets:
            self._clear_tables(row)
            self._append(row, self.block_ids(request))
        else:
            self._append(row, new.get_block_ids())
        return True

    def publish(self, request: Request, row: int) -> None:
        """Share the request's full blocks whose step has succeeded."""
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        full = computed // self._block_size
        if full > self._published[row]:
            self._hash_new_blocks(request)
            self._manager.cache_blocks(request, computed)
            self._published[row] = full

    def _hash_new_blocks(self, request: Request) -> None:
        """Hash blocks that have filled up since the last time.

        vLLM's `Request` would look after every token whether one has.
        """
        if self._block_hasher is not None:
            request.block_hashes.extend(self._block_hasher(request))

    def free(self, request: Request, row: int) -> None:
        """Take the request's blocks back; published ones stay as cached prefixes."""
        self._clear(row)
        self._manager.free(request)

    def discard(self, request: Request, row: int) -> None:
        """Take the blocks of a failed request back and forget what they hold."""
        ids = {i for group in self.block_ids(request) for i in group}
        self._manager.evict_blocks(ids - {0})  # the null block is nobody's
        self.free(request, row)

    def block_ids(self, request: Request) -> tuple[list[int], ...]:
        """Block ids per group."""
        return self._manager.get_block_ids(request.request_id)

    def num_blocks(self, row: int) -> int:
        """Blocks that the request in a row references."""
        return sum(width[row] for width in self._widths)

    def forget_prefixes(self) -> bool:
        """Empty the prefix cache; False when requests hold blocks."""
        forgotten = bool(self._manager.reset_prefix_cache())
        self.report_block_events()  # there may be no step for long
        return forgotten

    def report_block_events(self) -> None:
        """Hand over what was cached and evicted since the last time."""
        if self._on_block_events is None:
            return
        events = self._manager.take_events()
        if events:
            self._on_block_events(events)

    def picture(self) -> PoolPicture:
        """The pool as it is, for a recording."""
        return take_picture(self._manager)

    def restore(self, picture: PoolPicture) -> None:
        """Make a new pool what a picture shows; no row has a request yet."""
        put_back(self._manager, picture)

    def published_blocks(self, row: int) -> int:
        """Blocks of the row's request that may be shared."""
        return self._published[row]

    def restore_row(self, request: Request, row: int, published: int) -> None:
        """Name the blocks of a request of the picture in its row's tables."""
        self._append(row, self.block_ids(request))
        self._published[row] = published

    def _append(self, row: int, ids: Sequence[list[int]]) -> None:
        """Name new blocks, given per group, behind those in the row's tables."""
        for table, widths, new in zip(self._tables, self._widths, ids, strict=True):
            width = widths[row]
            table[row, width : width + len(new)] = new
            widths[row] = width + len(new)
        room = min(
            widths[row] * size
            for widths, size in zip(self._widths, self._group_block_sizes, strict=True)
        )
        self._width[row] = room // self._block_size

    def _clear(self, row: int) -> None:
        self._clear_tables(row)
        self._width[row] = self._published[row] = 0

    def _clear_tables(self, row: int) -> None:
        for table, widths in zip(self._tables, self._widths, strict=True):
            table[row] = 0
            widths[row] = 0
