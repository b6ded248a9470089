"""Lanes: own rows, queues and blocks, one phase for all (contract 2.4, 2.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import Phase, StepRecord
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig, Stream

RigMaker = Callable[..., Rig]


def lane_of(rig: Rig, stream: Stream) -> int:
    """The lane of a request's rows; it must be the same in all of its steps."""
    lanes = {
        lane.lane
        for record in rig.records
        for lane in record.lanes
        for row in lane.rows
        if row.request_id == stream.request_id
    }
    [lane] = lanes
    return lane


def shares(record: StepRecord, lanes: int) -> list[int]:
    """Rows of each lane in a step."""
    found = {lane.lane: len(lane.rows) for lane in record.lanes}
    return [found.get(lane, 0) for lane in range(lanes)]


def assert_right(rig: Rig, *streams: Stream) -> None:
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    for stream in streams:
        prompt, count = stream.request.prompt_token_ids, stream.request.max_tokens
        assert prompt is not None
        assert stream.token_ids == expected_tokens(prompt, count, vocabulary)
    rig.assert_nothing_is_held()


@pytest.mark.feature(82)
def test_ties_go_to_the_lowest_lane(make_rig: RigMaker) -> None:
    rig = make_rig(lanes=3, rows=2)
    streams = [rig.submit([i + 1] * 10, 20) for i in range(6)]
    rig.run()
    assert [lane_of(rig, stream) for stream in streams] == [0, 1, 2, 0, 1, 2]


@pytest.mark.feature(82)
def test_who_waits_counts_as_four_who_run(make_rig: RigMaker) -> None:
    rig = make_rig(lanes=2, rows=4)
    streams = [rig.submit([i + 1] * 10, 2 if i % 2 else 30) for i in range(6)]
    rig.run(steps=4)  # those of lane 1 have ended, three of lane 0 run
    first, second = rig.submit([7] * 10, 5), rig.submit([8] * 10, 5)
    rig.run()
    # Loads 3 and 0, then 3 and 4.
    assert (lane_of(rig, first), lane_of(rig, second)) == (1, 0)
    assert_right(rig, *streams, first, second)


@pytest.mark.feature(83)
def test_who_was_preempted_comes_back_to_its_lane(make_rig: RigMaker) -> None:
    rig = make_rig(
        lanes=2, rows=3, num_blocks=33, block_size=16, enable_prefix_caching=False
    )
    # Lane 0 has too few blocks for its three, lane 1 has enough.
    streams = [rig.submit([i + 1] * (20 if i % 2 else 150), 60) for i in range(6)]
    rig.run()
    preempted = {name for record in rig.records for name in record.preempted}
    assert preempted
    for stream in streams:
        assert lane_of(rig, stream) == streams.index(stream) % 2
    assert_right(rig, *streams)


@pytest.mark.feature(84)
@pytest.mark.edge(4)
def test_a_lane_stands_still_while_another_prefills(make_rig: RigMaker) -> None:
    rig = make_rig(
        lanes=2,
        rows=2,
        max_num_batched_tokens=16,
        interleave=InterleaveConfig(enabled=False),
    )
    decoding = rig.submit([1] * 10, 20)
    rig.run(steps=3)
    seen = len(rig.records)
    long = rig.submit([2] * 60, 20)
    rig.run()
    chunks, after = rig.records[seen + 1 : seen + 5], rig.records[seen + 5]
    assert {record.phase for record in chunks} == {Phase.PREFILL}
    assert [shares(record, 2) for record in chunks] == [[0, 1]] * 4
    assert after.phase is Phase.DECODE
    assert shares(after, 2) == [1, 1]
    assert_right(rig, decoding, long)


@pytest.mark.feature(85)
@pytest.mark.edge(15)
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_stuck_prefill_that_preempted_is_planned_again_as_decode(
    make_rig: RigMaker, lanes: int
) -> None:
    """A prompt runs out of blocks behind its own chunks, and gives way to itself."""
    rig = make_rig(
        lanes=lanes,
        rows=2,
        num_blocks=33,
        block_size=16,
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
        scheduler_reserve_full_isl=False,
    )
    decoding = [rig.submit([i + 1] * 200, 60) for i in range(lanes)]
    rig.run(steps=16 * lanes)
    long = [rig.submit([i + 5] * 400, 4) for i in range(lanes)]
    rig.run()
    again = [r for r in rig.records if r.phase_reason == "prefill_stuck"]
    assert {record.phase for record in again} == {Phase.DECODE}
    told = [name for record in again for name in record.preempted]
    assert set(told) == {stream.request_id for stream in long}
    # Each preemption is told once, by the step that was run.
    preempted = [name for record in rig.records for name in record.preempted]
    assert len(preempted) == sum(stream.request.num_preemptions for stream in long)
    assert_right(rig, *decoding, *long)


@pytest.mark.feature(89)
def test_gaps_between_rows_change_nothing(make_rig: RigMaker) -> None:
    """Rows of both lanes become free while others go on sampling on the host."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.7, "seed": -1, "top_p": 0.8},
        {"temperature": 1.0, "seed": 2**40, "min_p": 0.05},
        {"temperature": 0.0, "logit_bias": {65: 5.0}, "min_tokens": 3},
    ]
    alone = []
    for i, kind in enumerate(kinds):
        rig = make_rig(lanes=1, rows=1)
        alone.append(rig.generate([i + 1] * 12, 8 * (i + 1), **kind))
    rig = make_rig(lanes=2, rows=4)
    streams = [
        rig.submit([i + 1] * 12, 8 * (i + 1), **kind) for i, kind in enumerate(kinds)
    ]
    rig.run()
    gappy = [
        record
        for record in rig.records
        if record.phase is Phase.DECODE and shares(record, 2) == [1, 1]
    ]
    assert gappy
    assert [stream.token_ids for stream in streams] == alone


@pytest.mark.edge(17)
def test_a_seeded_stream_stands_still_while_its_lane_does(make_rig: RigMaker) -> None:
    """Prompts of one lane are sampled while the other's request sits out."""
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": 11, "top_p": 0.9}
    alone = make_rig(lanes=1, rows=1).generate([1] * 10, 30, **sampling)
    rig = make_rig(lanes=2, rows=4, interleave=InterleaveConfig(prefill_steps=1))
    seeded = rig.submit([1] * 10, 30, **sampling)
    rig.run(steps=3)
    for i in range(6):
        rig.submit([i + 5] * 10, 4, temperature=1.0, seed=i)
        rig.run(steps=2)
    rig.run()
    apart = [record for record in rig.records if shares(record, 2) == [0, 1]]
    assert any(record.produced_tokens for record in apart)
    assert seeded.token_ids == alone


@pytest.mark.feature(57, 86)
def test_a_lane_knows_only_its_own_prefixes(make_rig: RigMaker) -> None:
    rig = make_rig(lanes=2, rows=2)
    prompt = [3] * 40
    cached = []
    # One after another, so that all would go to lane 0 but for a neighbour there.
    for neighbours in (0, 1, 0, 1):
        for _ in range(neighbours):
            rig.submit([9] * 5, 60)
        rig.run(steps=3)
        stream = rig.submit(prompt, 2)
        rig.run()
        assert lane_of(rig, stream) == neighbours
        assert_right(rig, stream)
        assert stream.prefill is not None
        cached.append(stream.prefill.cached_tokens)
    assert cached == [0, 0, 32, 32]


@pytest.mark.feature(80, 88)
@pytest.mark.parametrize("lanes", [2, 3])
def test_a_decode_covers_all_rows_of_all_lanes(make_rig: RigMaker, lanes: int) -> None:
    """Buckets are a lane's; rows of several lanes interleave, so none is cut off."""
    rig = make_rig(lanes=lanes, rows=4)
    streams = [rig.submit([lane + 1] * 10, 6) for lane in range(lanes)]
    rig.run()
    decodes = [record for record in rig.records if record.phase is Phase.DECODE]
    assert {record.padded_rows for record in decodes} == {4 * lanes}
    taken = {
        row.row for record in decodes for lane in record.lanes for row in lane.rows
    }
    assert taken == {4 * lane for lane in range(lanes)}
    assert_right(rig, *streams)


@pytest.mark.feature(132, 133)
def test_grammars_of_all_lanes_share_a_mask(make_rig: RigMaker) -> None:
    """One row in each lane; the one in the middle is free."""
    rig = make_rig(lanes=3, rows=1)
    letters = ["ab", "", "cd"]
    streams = []
    for own in letters:
        regex = StructuredOutputsParams(regex=f"[{own}]+") if own else None
        streams.append(rig.submit([1] * 10, 6, structured_outputs=regex))
    rig.run()
    assert [1, 1, 1] in [shares(record, 3) for record in rig.records]
    assert set(bytes(streams[0].token_ids)) <= set(b"ab")
    assert set(bytes(streams[2].token_ids)) <= set(b"cd")
    assert_right(rig, streams[1])


@pytest.mark.feature(92, 155)
def test_figures_of_all_lanes_are_one(make_rig: RigMaker) -> None:
    rig = make_rig(lanes=2, rows=1, num_blocks=33, block_size=16)
    for length in (40, 100, 10, 10, 10):
        rig.submit([length] * length, 5)
    rig.run(steps=2)
    stats = rig.sink.deliveries[-1].stats
    assert (stats.running, stats.waiting) == (2, 3)
    # 3 and 7 of the 32 blocks that a lane has.
    assert stats.kv_usage == pytest.approx((3 / 32 + 7 / 32) / 2)
