"""The engine over the sim mesh, one step at a time.

What a right run must produce comes from `expected_tokens`, which knows nothing
of blocks, rows or chunks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.records import (
    FinishKind,
    Phase,
    RowRecord,
    StepRecord,
    WaitingReason,
)
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig, Stream
from ttserve.errors import Reason

RigMaker = Callable[..., Rig]


def expected(rig: Rig, prompt: list[int], count: int) -> list[int]:
    vocabulary = SimVocabulary.of(rig.config.model_config.hf_config)
    return expected_tokens(prompt, count, vocabulary)


def prompts(count: int, *, seed: int = 0, longest: int = 90) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(1, 250) for _ in range(draw.randrange(1, longest))]
        for _ in range(count)
    ]


def assert_complete(rig: Rig, stream: Stream, prompt: list[int], count: int) -> None:
    assert stream.token_ids == expected(rig, prompt, count)
    assert stream.finish is not None
    assert stream.finish.kind is FinishKind.LENGTH


def phases(records: list[StepRecord]) -> str:
    return "".join("P" if r.phase is Phase.PREFILL else "D" for r in records)


def rows(record: StepRecord) -> list[RowRecord]:
    return [row for lane in record.lanes for row in lane.rows]


# -- right tokens, whatever happens around a request --------------------------


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({}, id="roomy"),
        pytest.param({"max_num_batched_tokens": 24}, id="chunked"),
        pytest.param({"enable_chunked_prefill": False}, id="whole"),
        pytest.param({"enable_prefix_caching": False}, id="no-prefix-cache"),
        pytest.param({"num_blocks": 34}, id="few-blocks"),
        pytest.param({"lanes": 4, "rows": 2}, id="lanes"),
        pytest.param(
            {"num_blocks": 34, "max_num_batched_tokens": 24, "rows": 3},
            id="few-blocks-chunked",
        ),
    ],
)
def test_tokens_are_those_of_a_lone_run(
    make_rig: RigMaker, shape: dict[str, Any]
) -> None:
    rig = make_rig(**shape)
    asked = [(p, 30 + len(p) % 7) for p in prompts(20)]
    streams = [rig.submit(p, n) for p, n in asked]
    rig.run()
    for stream, (prompt, count) in zip(streams, asked, strict=True):
        assert_complete(rig, stream, prompt, count)
    rig.assert_nothing_is_held()


def test_few_blocks_really_preempt(make_rig: RigMaker) -> None:
    rig = make_rig(num_blocks=34, rows=8)
    for prompt in prompts(8, longest=60):
        rig.submit(prompt, 200)
    rig.run()
    assert any(record.preempted for record in rig.records)
    rig.assert_nothing_is_held()


@pytest.mark.feature(57)
def test_a_prefix_hit_starts_behind_the_cached_blocks(make_rig: RigMaker) -> None:
    rig = make_rig(block_size=16)
    prompt = prompts(1, longest=2)[0] * 100
    first, second = rig.generate(prompt, 5), rig.submit(prompt, 5)
    rig.run()
    assert second.token_ids == first == expected(rig, prompt, 5)
    assert second.prefill is not None
    # 100 tokens are six full blocks of 16, and the last token must be computed.
    assert (second.prefill.prompt_tokens, second.prefill.cached_tokens) == (100, 96)


def test_two_equal_prompts_in_one_step_do_not_share(make_rig: RigMaker) -> None:
    """COMPOSING coupling 4: a hit on blocks that the same step computes."""
    rig = make_rig()
    prompt = [7] * 64
    streams = [rig.submit(prompt, 3), rig.submit(prompt, 3)]
    rig.run()
    for stream in streams:
        assert stream.prefill is not None
        assert stream.prefill.cached_tokens == 0
        assert_complete(rig, stream, prompt, 3)


# -- phases --------------------------------------------------------------------


@pytest.mark.feature(58)
def test_no_step_mixes_phases(make_rig: RigMaker) -> None:
    rig = make_rig(max_num_batched_tokens=16, rows=4)
    for prompt in prompts(12):
        rig.submit(prompt, 10)
    rig.run()
    for record in rig.records:
        for row in (row for lane in record.lanes for row in lane.rows):
            if record.phase is Phase.DECODE:
                assert row.tokens == 1
                assert not row.intermediate_chunk
                assert row.produced_tokens == 1
            else:
                assert row.produced_tokens == int(not row.intermediate_chunk)


@pytest.mark.feature(64, 65)
@pytest.mark.parametrize(
    ("interleave", "expected_start"),
    [
        (InterleaveConfig(), "PPDPPDPPDPP"),
        (InterleaveConfig(enabled=False), "PPPPPPPPPP"),
        (InterleaveConfig(True, 1, 2), "PDDPDDPDD"),
    ],
)
def test_decode_steps_enter_a_run_of_chunks(
    make_rig: RigMaker, interleave: InterleaveConfig, expected_start: str
) -> None:
    rig = make_rig(max_num_batched_tokens=16, interleave=interleave)
    rig.submit([5] * 10, 100)
    rig.run(steps=3)
    rig.submit([9] * 400, 4)
    rig.run(steps=40)
    before, after = "PDD", phases(rig.records)
    assert after.startswith(before + expected_start)


def test_the_gap_between_tokens_is_bounded_by_the_interleave(
    make_rig: RigMaker,
) -> None:
    """Case O18: a long prompt does not starve those who decode."""
    rig = make_rig(max_num_batched_tokens=16, rows=8)
    decoding = [rig.submit([i + 1] * 5, 120) for i in range(4)]
    rig.run(steps=3)
    rig.submit([9] * 480, 4)
    rig.run()
    for stream in decoding:
        gaps = [b - a for a, b in zip(stream.steps, stream.steps[1:], strict=False)]
        assert max(gaps) <= InterleaveConfig().prefill_steps + 1


def test_first_come_first_served(make_rig: RigMaker) -> None:
    rig = make_rig(rows=2)
    streams = [rig.submit(p, 6) for p in prompts(6)]
    rig.run()
    first_tokens = [stream.steps[0] for stream in streams]
    assert first_tokens == sorted(first_tokens)


def test_priority_overtakes(make_rig: RigMaker) -> None:
    rig = make_rig(rows=1, scheduling_policy="priority")
    rig.submit([1, 2], 3)
    rig.run(steps=1)
    late, urgent = rig.submit([3, 4], 3, priority=5), rig.submit([5, 6], 3, priority=1)
    rig.run()
    assert urgent.steps[-1] < late.steps[0]


def test_a_waiting_grammar_holds_nobody_up(make_rig: RigMaker) -> None:
    rig = make_rig(rows=1)
    blocked = rig.submit(
        [1, 2],
        3,
        wait_for_grammar=False,
        structured_outputs=StructuredOutputsParams(regex="[ab]+"),
    )
    free = rig.submit([3, 4], 3)
    rig.run()
    assert free.finish is not None
    assert blocked.finish is None
    future = rig.engine.snapshot()
    rig.run()
    [waiting] = future.result(timeout=0).lanes[0].waiting
    assert waiting.reason is WaitingReason.GRAMMAR


# -- ends ----------------------------------------------------------------------


def test_stop_token_ends_and_is_reported(make_rig: RigMaker) -> None:
    rig = make_rig()
    prompt = [3, 1, 4, 1, 5]
    lone = expected(rig, prompt, 8)
    stop = lone[4]
    stream = rig.submit(prompt, 8, stop_token_ids=[stop])
    rig.run()
    assert stream.token_ids == lone[: lone.index(stop) + 1]
    assert stream.finish is not None
    assert (stream.finish.kind, stream.finish.stop_token_id) == (FinishKind.STOP, stop)


def test_the_context_limit_ends_a_request(make_rig: RigMaker) -> None:
    rig = make_rig(max_model_len=64)
    stream = rig.submit([2] * 60, 100)
    rig.run()
    assert len(stream.token_ids) == 4
    assert stream.finish is not None
    assert stream.finish.kind is FinishKind.LENGTH


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3, 6, 9])
def test_an_abort_frees_at_every_stage(make_rig: RigMaker, steps_before: int) -> None:
    rig = make_rig(max_num_batched_tokens=16)
    stays, goes = rig.submit([8] * 20, 12), rig.submit([9] * 40, 12)
    rig.run(steps=steps_before)
    rig.abort(goes)
    rig.run()
    assert goes.finish is not None
    assert goes.finish.kind in (FinishKind.ABORT, FinishKind.LENGTH)
    assert goes.token_ids == expected(rig, [9] * 40, 12)[: len(goes.token_ids)]
    assert_complete(rig, stays, [8] * 20, 12)
    rig.assert_nothing_is_held()


# -- failures --------------------------------------------------------------------


def failing(*steps: int) -> dict[str, Any]:
    return {"mesh_options": {"sim": {"fail_steps": list(steps)}}}


def test_a_failed_step_fails_its_requests_only(make_rig: RigMaker) -> None:
    rig = make_rig(**failing(3), rows=2)
    inside = [rig.submit([4] * 40, 10), rig.submit([6] * 40, 10)]
    outside = rig.submit([8] * 40, 10)
    rig.run()
    for stream in inside:
        assert stream.finish is not None
        assert stream.finish.error is not None
        assert stream.finish.error.reason is Reason.STEP_FAILED
        assert stream.finish.error.metadata == {"stepNumber": "3"}
    assert_complete(rig, outside, [8] * 40, 10)
    assert [r.number for r in rig.records if r.error] == [3]
    rig.assert_nothing_is_held()


@pytest.mark.parametrize("failed_step", [1, 2, 3])
def test_a_failed_step_leaves_no_trace_in_the_prefix_cache(
    make_rig: RigMaker, failed_step: int
) -> None:
    """COMPOSING coupling 3: hashes of blocks that were never written."""
    rig = make_rig(**failing(failed_step), max_num_batched_tokens=32)
    prompt = list(range(1, 97))
    rig.submit(prompt, 5)
    rig.run()
    again = rig.submit(prompt, 5)
    rig.run()
    assert_complete(rig, again, prompt, 5)


def test_a_second_failure_in_a_row_ends_the_engine(make_rig: RigMaker) -> None:
    rig = make_rig(**failing(1, 2))
    streams = [rig.submit([4] * 10, 5)]
    rig.engine.start()
    streams += [rig.submit([5] * 10, 5), rig.submit([6] * 10, 5)]
    error = rig.engine.died.exception(timeout=30)
    assert error is not None
    assert rig.engine.join(timeout=10)
    for stream in streams:
        assert stream.finish is not None
        assert stream.finish.kind is FinishKind.ERROR


def test_a_success_between_two_failures_keeps_the_engine(make_rig: RigMaker) -> None:
    rig = make_rig(**failing(1, 3))
    for token in (4, 5, 6):
        rig.submit([token] * 10, 2)
        rig.run()
    assert len([r for r in rig.records if r.error]) == 2


def test_a_poisoned_mesh_ends_the_engine_at_once(make_rig: RigMaker) -> None:
    rig = make_rig(mesh_options={"sim": {"poison_step": 2}})
    stream, waiting = rig.submit([4] * 10, 5), rig.submit([4] * 10, 5)
    rig.engine.start()
    assert rig.engine.died.exception(timeout=30) is not None
    rig.engine.join(timeout=10)
    for ended in (stream, waiting):
        assert ended.finish is not None
        assert ended.finish.error is not None
        assert ended.finish.error.reason is Reason.MESH_POISONED


@pytest.mark.parametrize("prompts_waiting", [0, 3])
def test_stop_ends_the_thread_and_answers_what_is_left(
    make_rig: RigMaker, prompts_waiting: int
) -> None:
    rig = make_rig(rows=1, mesh_options={"sim": {"decode_ms": 20}})
    rig.engine.start()
    streams = [rig.submit([i + 1] * 10, 500) for i in range(prompts_waiting)]
    rig.engine.snapshot().result(timeout=10)
    rig.engine.stop()
    assert rig.engine.died.result(timeout=10) is None
    assert rig.engine.join(timeout=10)
    for stream in streams:
        assert stream.finish is not None
        assert stream.finish.error is not None
        assert stream.finish.error.reason is Reason.DRAINING


# -- step control ------------------------------------------------------------------


def test_pause_run_and_resume(make_rig: RigMaker) -> None:
    rig = make_rig()
    stream = rig.submit([4] * 10, 6)
    paused_at = rig.engine.pause()
    rig.run()
    assert paused_at.result(timeout=0) == 0
    assert stream.token_ids == []
    ran = rig.engine.run_steps(2)
    rig.run()
    assert [r.number for r in ran.result(timeout=0)] == [1, 2]
    assert len(stream.token_ids) == 2
    resumed = rig.engine.resume()
    rig.run()
    resumed.result(timeout=0)
    assert_complete(rig, stream, [4] * 10, 6)


def test_a_run_of_steps_ends_when_work_runs_out(make_rig: RigMaker) -> None:
    rig = make_rig()
    rig.engine.pause()
    rig.submit([4] * 10, 3)
    ran = rig.engine.run_steps(50)
    rig.run()
    assert len(ran.result(timeout=0)) == 3


@pytest.mark.feature(71)
@pytest.mark.edge(9)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"lanes": 2, "rows": 2, "max_num_batched_tokens": 16},
        {"async_scheduling": True, "site": {"mode": "all"}},
    ],
)
@pytest.mark.parametrize("steps_before", [0, 1, 3, 8])
def test_a_forced_reset_takes_running_requests_back_and_loses_no_token(
    make_rig: RigMaker, shape: dict[str, Any], steps_before: int
) -> None:
    rig = make_rig(**shape)
    shared = [4] * 64
    asked = [(shared + [i], 20 + i) for i in range(1, 6)]
    streams = [rig.submit(prompt, count) for prompt, count in asked]
    rig.run(steps=steps_before)
    seen = len(rig.records)
    reset = rig.engine.reset_prefix_cache(preempt_running=True)
    rig.run(steps=2)
    assert reset.result(timeout=0) is True
    rig.run()
    for stream, (prompt, count) in zip(streams, asked, strict=True):
        assert_complete(rig, stream, prompt, count)
    # Who ran before begins again, and the first one finds nothing in the cache.
    before = {row.request_id for record in rig.records[:seen] for row in rows(record)}
    begins = [
        row.request_id
        for record in rig.records
        for row in rows(record)
        if record.phase is Phase.PREFILL and row.start_position == 0
    ]
    for stream in streams:
        if stream.request_id in before:
            assert stream.request.num_preemptions == 1
    if before:
        assert begins.count(streams[0].request_id) == 2
    told = [name for record in rig.records for name in record.preempted]
    again = [s.request_id for s in streams if s.request.num_preemptions]
    assert sorted(told) == again
    assert before <= set(again)
    assert bool(again) is (steps_before > 0)
    rig.assert_nothing_is_held()


def test_prefixes_are_forgotten_only_while_idle(make_rig: RigMaker) -> None:
    rig = make_rig()
    prompt = [4] * 64
    rig.generate(prompt, 2)
    rig.submit(prompt, 5)
    rig.run(steps=1)
    busy = rig.engine.reset_prefix_cache()
    rig.run()
    idle = rig.engine.reset_prefix_cache()
    rig.run()
    assert (busy.result(timeout=0), idle.result(timeout=0)) == (False, True)
    after = rig.submit(prompt, 2)
    rig.run()
    assert after.prefill is not None
    assert after.prefill.cached_tokens == 0
