"""Which steps the engine makes of its requests: the rules of contract 2.1 to 2.4.

Each test reads the records of steps that an engine over the sim mesh has run; the
right tokens come from `expected_tokens`, which knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import Phase, RowRecord, SamplingSite, StepRecord
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig, Stream

RigMaker = Callable[..., Rig]

# Rows of 512 tokens would be 33 blocks of 16 with the null block.
SCARCE = {"num_blocks": 33, "block_size": 16, "enable_prefix_caching": False}


def rows(record: StepRecord) -> list[RowRecord]:
    return [row for lane in record.lanes for row in lane.rows]


def phases(records: list[StepRecord]) -> str:
    return "".join("P" if r.phase is Phase.PREFILL else "D" for r in records)


def ids(record: StepRecord) -> list[str]:
    return [row.request_id for row in rows(record)]


def assert_right(rig: Rig, *streams: Stream) -> None:
    """Every request got the tokens that it would get alone, to the last one."""
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    for stream in streams:
        prompt = stream.request.prompt_token_ids
        assert prompt is not None
        count = stream.request.max_tokens
        assert stream.token_ids == expected_tokens(prompt, count, vocabulary)


# -- which phase ------------------------------------------------------------------


@pytest.mark.feature(59)
def test_prefill_goes_first_while_it_can_move(make_rig: RigMaker) -> None:
    rig = make_rig(rows=4)
    first = rig.submit([1] * 20, 6)
    rig.run(steps=3)
    second = rig.submit([2] * 20, 6)
    rig.run()
    assert phases(rig.records).startswith("PDDPD")
    assert_right(rig, first, second)


@pytest.mark.feature(59)
@pytest.mark.edge(2)
@pytest.mark.parametrize("shape", [{}, {"lanes": 2, "rows": 2}])
def test_prefill_that_finds_no_blocks_lets_others_decode(
    make_rig: RigMaker, shape: dict[str, Any]
) -> None:
    """A free row is there, but no room: to wait for it must not stop the others."""
    rig = make_rig(**({"rows": 4} | SCARCE | shape))
    lanes = shape.get("lanes", 1)
    running = [rig.submit([lane + 1] * 300, 40) for lane in range(lanes)]
    rig.run(steps=2)
    waiting = [rig.submit([lane + 7] * 300, 4) for lane in range(lanes)]
    rig.run()
    stuck = [r for r in rig.records if r.phase_reason == "prefill_stuck"]
    assert stuck
    assert all(r.phase is Phase.DECODE for r in stuck)
    assert_right(rig, *running, *waiting)
    rig.assert_nothing_is_held()


@pytest.mark.feature(60, 66)
@pytest.mark.parametrize(
    "interleave", [InterleaveConfig(True, 1, 1), InterleaveConfig(True, 1, 5)]
)
def test_partial_prompts_are_nothing_to_decode(
    make_rig: RigMaker, interleave: InterleaveConfig
) -> None:
    """Two prompts of 25 chunks each, and blocks for little more than one of them."""
    rig = make_rig(
        rows=2,
        max_num_batched_tokens=16,
        long_prefill_token_threshold=8,
        interleave=interleave,
        scheduler_reserve_full_isl=False,
        **SCARCE,
    )
    streams = [rig.submit([3] * 400, 3), rig.submit([4] * 400, 3)]
    rig.run()
    first_token = next(r.number for r in rig.records if r.produced_tokens)
    before = phases(rig.records[:first_token])
    assert len(before) >= 25
    assert set(before) == {"P"}
    assert_right(rig, *streams)


@pytest.mark.feature(61)
@pytest.mark.edge(3)
def test_a_grammar_that_gets_ready_waits_for_a_prefill_step(
    make_rig: RigMaker,
) -> None:
    rig = make_rig(rows=4)
    decoding = rig.submit([1] * 20, 30)
    blocked = rig.submit(
        [2] * 20,
        6,
        wait_for_grammar=False,
        structured_outputs=StructuredOutputsParams(regex="[ab]+"),
    )
    rig.run(steps=6)
    assert phases(rig.records).startswith("PDDD")
    seen = len(rig.records)
    rig.await_grammar(blocked.request)
    rig.run()
    joined = next(r for r in rig.records[seen:] if blocked.request_id in ids(r))
    assert joined.phase is Phase.PREFILL
    assert ids(joined) == [blocked.request_id]
    assert_right(rig, decoding)
    assert set(bytes(blocked.token_ids)) <= set(b"ab")


@pytest.mark.feature(62, 88)
@pytest.mark.edge(16)
@pytest.mark.parametrize("shape", [{"rows": 3}, {"rows": 3, "lanes": 2}])
def test_prefill_admits_as_many_as_there_are_free_rows(
    make_rig: RigMaker, shape: dict[str, int]
) -> None:
    rig = make_rig(**shape)
    lanes = shape.get("lanes", 1)
    streams = [rig.submit([1] * 10, 30) for _ in range(lanes)]
    rig.run(steps=3)
    seen = len(rig.records)
    streams += [rig.submit([i + 2] * 10, 5) for i in range(5 * lanes)]
    rig.run()
    [admitting, *_] = [r for r in rig.records[seen:] if r.phase is Phase.PREFILL]
    # One row of each lane decodes, so each admits two of its five.
    assert [len(lane.rows) for lane in admitting.lanes if lane.rows] == [2] * lanes
    for record in rig.records:
        assert all(len(lane.rows) <= 3 for lane in record.lanes)
    assert_right(rig, *streams)


@pytest.mark.feature(72)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_both_policies_keep_the_phases_apart(make_rig: RigMaker, policy: str) -> None:
    rig = make_rig(
        rows=3, scheduling_policy=policy, max_num_batched_tokens=32, **SCARCE
    )
    urgency = [5, 0, 3, 3, 1, 4, 0, 2] if policy == "priority" else [0] * 8
    streams = [
        rig.submit([i + 1] * (20 + 9 * i), 60, priority=urgency[i]) for i in range(8)
    ]
    rig.run()
    for record in rig.records:
        if record.phase is Phase.DECODE:
            assert {row.tokens for row in rows(record)} == {1}
            assert not any(row.intermediate_chunk for row in rows(record))
    admitted = [
        row.request_id
        for record in rig.records
        for row in rows(record)
        if record.phase is Phase.PREFILL and row.start_position == 0
    ]
    order = sorted(range(8), key=lambda i: (urgency[i], i))
    first_time = list(dict.fromkeys(admitted))
    assert first_time == [streams[i].request_id for i in order]
    assert_right(rig, *streams)


@pytest.mark.feature(72)
def test_the_least_urgent_gives_way(make_rig: RigMaker) -> None:
    rig = make_rig(rows=3, scheduling_policy="priority", **SCARCE)
    streams = [
        rig.submit([i + 1] * 150, 60, priority=priority)
        for i, priority in enumerate([2, 9, 1])
    ]
    rig.run()
    preempted = [name for record in rig.records for name in record.preempted]
    assert preempted[0] == streams[1].request_id
    assert_right(rig, *streams)


# -- preemption -------------------------------------------------------------------


@pytest.mark.feature(63)
def test_who_was_preempted_comes_before_those_who_never_ran(
    make_rig: RigMaker,
) -> None:
    rig = make_rig(rows=3, **SCARCE)
    running = [rig.submit([i + 1] * 150, 60) for i in range(3)]
    rig.run(steps=2)
    late = rig.submit([9] * 20, 5)
    rig.run()
    (victim, *_) = [name for record in rig.records for name in record.preempted]
    assert victim == running[2].request_id
    began = next(r.number for r in rig.records if victim in r.preempted)
    back = next(
        r.number
        for r in rig.records
        if r.number > began and r.phase is Phase.PREFILL and victim in ids(r)
    )
    assert late.steps[0] >= back
    assert_right(rig, *running, late)


@pytest.mark.feature(69)
@pytest.mark.edge(8, 10)
@pytest.mark.parametrize("budget", [2048, 24])
def test_a_resume_replays_prompt_and_output(make_rig: RigMaker, budget: int) -> None:
    rig = make_rig(rows=3, max_num_batched_tokens=budget, **SCARCE)
    streams = [rig.submit([i + 1] * 150, 60) for i in range(3)]
    rig.run()
    preempting = next(r for r in rig.records if r.preempted)
    victim = preempting.preempted[0]
    made = sum(
        row.produced_tokens
        for record in rig.records[: preempting.number]
        for row in rows(record)
        if row.request_id == victim
    )
    assert made > 1
    replay = []
    for record in rig.records[preempting.number :]:
        for row in rows(record):
            if row.request_id == victim:
                replay.append((record.phase, row))
        if replay and not replay[-1][1].intermediate_chunk:
            break
    # Also behind its prompt's end, what was computed before is prefilled.
    assert {phase for phase, _ in replay} == {Phase.PREFILL}
    assert replay[0][1].start_position == 0
    assert sum(row.tokens for _, row in replay) == 150 + made
    assert [row.produced_tokens for _, row in replay[:-1]] == [0] * (len(replay) - 1)
    assert (len(replay) > 1) is (budget == 24)
    assert_right(rig, *streams)


# -- chunks -----------------------------------------------------------------------


@pytest.mark.feature(75, 79)
def test_an_inner_chunk_yields_nothing_and_samples_nothing(
    make_rig: RigMaker,
) -> None:
    rig = make_rig(max_num_batched_tokens=32)
    stream = rig.submit([5] * 100, 3)
    rig.run()
    chunks = [record for record in rig.records if record.phase is Phase.PREFILL]
    assert [record.scheduled_tokens for record in chunks] == [32, 32, 32, 4]
    inner, last = chunks[:-1], chunks[-1]
    assert [record.produced_tokens for record in inner] == [0, 0, 0]
    assert {record.sampling.site for record in inner} == {SamplingSite.NONE}
    assert last.produced_tokens == 1
    assert last.sampling.site is not SamplingSite.NONE
    assert_right(rig, stream)


@pytest.mark.feature(75)
def test_chunks_do_not_move_a_seeded_stream(make_rig: RigMaker) -> None:
    whole, chunked = make_rig(), make_rig(max_num_batched_tokens=16)
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": -7}
    prompts = [[7] * 90, [8] * 50, [9] * 10]
    made = []
    for rig in (whole, chunked):
        streams = [rig.submit(prompt, 12, **sampling) for prompt in prompts]
        rig.run()
        made.append([stream.token_ids for stream in streams])
    assert made[0] == made[1]
    assert len({tuple(tokens) for tokens in made[0]}) == 3


@pytest.mark.edge(13)
def test_a_chunk_takes_no_row_of_the_mask(make_rig: RigMaker) -> None:
    """A chunk, a prompt under a grammar and a free one share a prefill step."""
    rig = make_rig(max_num_batched_tokens=32, long_prefill_token_threshold=16)

    def constrained(prompt: list[int], letters: str) -> Stream:
        regex = StructuredOutputsParams(regex=f"[{letters}]+")
        return rig.submit(prompt, 5, structured_outputs=regex)

    long, short = constrained([1] * 60, "ab"), constrained([2] * 5, "cd")
    free = rig.submit([3] * 5, 5)
    rig.run()
    mixed = [
        record
        for record in rig.records
        if {row.intermediate_chunk for row in rows(record)} == {True, False}
    ]
    assert mixed
    assert set(bytes(long.token_ids)) <= set(b"ab")
    assert set(bytes(short.token_ids)) <= set(b"cd")
    assert_right(rig, free)


@pytest.mark.parametrize(
    ("budget", "threshold", "first_step"),
    [
        (64, 0, [64]),  # the first prompt takes the whole budget
        (64, 24, [24, 24, 16]),  # the threshold bounds one prompt, the budget all
        (200, 0, [100, 100]),
    ],
)
@pytest.mark.feature(73)
def test_budget_and_threshold_bound_a_prefill_step(
    make_rig: RigMaker, budget: int, threshold: int, first_step: list[int]
) -> None:
    rig = make_rig(
        max_num_batched_tokens=budget, long_prefill_token_threshold=threshold
    )
    streams = [rig.submit([i + 1] * 100, 2) for i in range(3)]
    rig.run()
    assert [row.tokens for row in rows(rig.records[0])] == first_step
    assert all(record.scheduled_tokens <= budget for record in rig.records)
    assert_right(rig, *streams)


@pytest.mark.feature(73)
@pytest.mark.edge(1, 6)
def test_without_chunks_a_step_takes_whole_prompts(make_rig: RigMaker) -> None:
    rig = make_rig(enable_chunked_prefill=False, max_num_batched_tokens=512)
    streams = [rig.submit([i + 1] * 200, 2) for i in range(3)]
    rig.run()
    prompts = [
        [row.tokens for row in rows(record)]
        for record in rig.records
        if record.phase is Phase.PREFILL
    ]
    # The third does not fit beside the first two, and is not begun.
    assert prompts == [[200, 200], [200]]
    assert_right(rig, *streams)
