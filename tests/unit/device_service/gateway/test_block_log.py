"""The log of cached blocks, as an index that only reads its messages sees it."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable

import pytest
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)

from device_service.gateway.block_log import MAX_KEPT_BATCHES, BlockLog
from device_service.gateway.block_messages import batch_message
from tests.support.block_index import BlockIndex
from tests.support.block_ledger import BlockLedger, kept_by
from tests.support.rig import Rig
from ttserve.sim_model import sim_model_dir

BLOCK = 16


def stored(
    hashes: list[int],
    parent: int | None = None,
    *,
    group: int = 0,
    kind: str = "full_attention",
    block: int = 4,
    salt: str | None = None,
) -> BlockStored:
    """vLLM's event; the tokens of a block are its hash, over and over."""
    return BlockStored(
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=[h % 1000 for h in hashes for _ in range(block)],
        block_size=block,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=None if salt is None else [(salt,)] + [None] * (len(hashes) - 1),
        group_idx=group,
        kv_cache_spec_kind=kind,
    )


def removed(*hashes: int, group: int = 0) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium="GPU", group_idx=group)


def read(log: BlockLog, index: BlockIndex, start: int | None = None) -> BlockIndex:
    """Bring an index up to date."""
    number = index.number + 1 if start is None else start
    for batch in log.since(number):
        index.take(batch_message(0, batch))
    return index


def log_of(*steps: Iterable[KVCacheEvent]) -> BlockLog:
    log = BlockLog(lambda: 5.0)
    for events in steps:
        log.apply(events)
    return log


def test_a_new_follower_gets_what_is_cached() -> None:
    log = log_of([stored([1, 2, 3])], [removed(3)], [stored([4], parent=2)])
    index = read(log, BlockIndex(), start=0)
    assert index.snapshots == 1
    assert {h: (e.parent, e.copies) for h, e in index.entries.items()} == {
        1: (None, 1),
        2: (1, 1),
        4: (2, 1),
    }
    assert index.number == log.last_number == 4


def test_a_follower_resumes_where_it_was() -> None:
    log = log_of([stored([1])])
    index = read(log, BlockIndex(), start=0)
    assert read(log, index).number == 2  # nothing new
    log.apply([stored([2], parent=1), removed(1)])
    log.apply([AllBlocksCleared()])
    [first, second] = log.since(index.number + 1)
    assert (first.number, second.number) == (3, 4)
    index.take(batch_message(0, first))
    assert set(index.entries) == {2}
    index.take(batch_message(0, second))
    assert not index.entries
    assert index.snapshots == 1


def test_a_block_is_cached_until_its_last_copy_goes() -> None:
    log = log_of([stored([1])], [stored([1])], [removed(1)])
    assert read(log, BlockIndex(), start=0).entries[1].copies == 1
    log.apply([removed(1)])
    assert not read(log, BlockIndex(), start=0).entries


def test_who_is_too_far_behind_gets_a_snapshot() -> None:
    log = BlockLog()
    index = read(log, BlockIndex(), start=0)
    for number in range(MAX_KEPT_BATCHES + 5):
        log.apply([stored([number])])
    read(log, index)
    assert index.snapshots == 2
    assert len(index.entries) == MAX_KEPT_BATCHES + 5
    log.apply([stored([9999])])
    assert 9999 in read(log, index).entries
    assert index.snapshots == 2


@pytest.mark.parametrize("start", [3, 1000])
def test_a_number_of_another_life_gets_a_snapshot(start: int) -> None:
    [part] = log_of().since(start)
    assert part.snapshot is not None


def test_a_large_cache_comes_in_parts_and_a_large_step_in_batches() -> None:
    log = BlockLog()
    index = read(log, BlockIndex(), start=0)
    log.apply([stored(list(range(1, 3001)), block=64)])
    parts = log.since(0)
    assert [(p.snapshot.index, p.snapshot.count) for p in parts if p.snapshot] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]
    assert [part.number for part in parts] == [2, 3, 4]
    sizes = [batch_message(0, part).ByteSize() for part in parts]
    assert max(sizes) < 1 << 20
    assert read(log, index).entries == read(log, BlockIndex(), start=0).entries
    assert index.number == 4


def test_a_snapshot_names_parents_before_children() -> None:
    """Also one that was evicted and came back after its child."""
    log = log_of([stored([1, 2, 3])], [removed(1)], [stored([1])])
    [part] = log.since(0)
    [stored_, *more] = batch_message(0, part).events[1:]
    assert [b.block_hash for b in stored_.stored.blocks] == [1, 2, 3]
    assert not more


def test_only_full_attention_counts() -> None:
    log = log_of(
        [
            stored([7], group=1, kind="sliding_window"),
            stored([1], group=0),
            stored([8], group=2),
            removed(7, group=1),
        ]
    )
    assert set(read(log, BlockIndex(), start=0).entries) == {1}


def test_children_are_in_their_parents_namespace() -> None:
    log = log_of([stored([1, 2], salt="s")], [stored([3], parent=2)], [stored([4])])
    salts = {
        tuple(b.block_hash for b in event.stored.blocks): event.stored.cache_salt
        for batch in log.since(2)
        for event in batch_message(0, batch).events
    }
    assert salts == {(1, 2): "s", (3,): "s", (4,): ""}


def test_hashes_are_the_low_64_bits() -> None:
    digest = bytes(24) + (2**64 - 2).to_bytes(8, "big")
    log = BlockLog()
    event = stored([1], block=1)
    event.block_hashes = [digest]
    log.apply([event])
    [batch] = log.since(2)
    [block] = batch_message(3, batch).events[0].stored.blocks
    assert block.block_hash == -2
    assert batch_message(3, batch).dp_rank == 3
    assert array("I", block.token_ids) == array("I", [1])


@pytest.mark.parametrize("seed", range(3))
def test_the_index_foretells_what_the_engine_finds(seed: int) -> None:
    """Under evictions, preemptions, failed steps, aborts and resets."""
    draw = random.Random(seed)
    logs = [BlockLog(), BlockLog()]
    indices = [BlockIndex(), BlockIndex()]
    ledger = BlockLedger(rows_per_lane=4, block_size=BLOCK)
    families = [[draw.randrange(1, 250) for _ in range(160)] for _ in range(4)]

    def prompt() -> list[int]:
        shared = draw.choice(families)[: draw.randrange(1, 160)]
        return shared + [draw.randrange(1, 250) for _ in range(draw.randrange(1, 30))]

    with Rig(
        sim_model_dir(),
        rows=4,
        lanes=2,
        num_blocks=40,
        block_size=BLOCK,
        adapter=kept_by(ledger),
        mesh_options={"sim": {"fail_steps": [40, 90]}},
        on_block_events=lambda lane, events: logs[lane].apply(events),
    ) as rig:
        found = 0
        for turn in range(40):
            burst = [
                rig.submit(prompt(), draw.randrange(1, 60))
                for _ in range(draw.randrange(8))
            ]
            rig.run(draw.randrange(1, 30))
            if burst and draw.random() < 0.3:
                rig.abort(burst[0])
            rig.run()
            if turn % 15 == 14:
                reset = rig.engine.reset_prefix_cache()
                rig.run()
                assert reset.result(timeout=0)
            probe = prompt()
            for log, index in zip(logs, indices, strict=True):
                read(log, index, start=0 if draw.random() < 0.2 else None)
                assert index.copies <= 39
            alone = rig.submit(probe, 1)
            rig.run()
            lane = next(e.lane for e in rig.records[-1].lanes if e.rows)
            foretold = indices[lane].cached_tokens(probe, BLOCK)
            if alone.prefill is not None:
                assert alone.prefill.cached_tokens == foretold
                found += foretold
        assert found > 500
        assert ledger.faults == []
        for log, index in zip(logs, indices, strict=True):
            assert read(log, index).entries == read(log, BlockIndex(), 0).entries
