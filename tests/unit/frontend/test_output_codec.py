"""StepOutput -> vLLM's outputs: one per token, whatever was merged on the way."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.engine import EngineCoreEventType, FinishReason

from frontend.codec.outputs import DecodedStep, Decoding, decode_logprobs, decode_step
from ttserve.errors import Reason, TTServeError
from ttserve.status import to_status
from ttserve.v1 import step_pb2
from ttserve.v1.generation_pb2 import TokenLogprobs

QUEUED = step_pb2.REQUEST_EVENT_KIND_QUEUED
SCHEDULED = step_pb2.REQUEST_EVENT_KIND_SCHEDULED


def decode(step: step_pb2.StepOutput, *unknown: int) -> DecodedStep:
    known = {h: Decoding(f"r{h}") for h in step.handles if h not in unknown}
    return decode_step(step, known.get)


def tokens_of(decoded: DecodedStep) -> dict[str, list[int]]:
    """Token ids by request; every output has one, or ends a request without."""
    found: dict[str, list[int]] = {}
    for output in decoded.outputs.outputs:
        assert len(output.new_token_ids) == 1 or output.finished
        found.setdefault(output.request_id, []).extend(output.new_token_ids)
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.integers(1, 2**63), st.lists(st.integers(0, 2**31 - 1), max_size=5)
    )
)
def test_columns_are_cut_right(columns: dict[int, list[int]]) -> None:
    step = step_pb2.StepOutput(
        handles=columns,
        token_ids=[token for tokens in columns.values() for token in tokens],
        token_counts=[len(tokens) for tokens in columns.values()],
        monotonic_seconds=12.5,
    )
    decoded = decode(step)
    expected = {f"r{handle}": tokens for handle, tokens in columns.items() if tokens}
    assert tokens_of(decoded) == expected
    assert decoded.outputs.timestamp == 12.5
    assert not decoded.failures
    assert not decoded.finished_handles


def test_one_token_each_needs_no_counts() -> None:
    step = step_pb2.StepOutput(handles=[4, 9], token_ids=[7, 8])
    assert tokens_of(decode(step)) == {"r4": [7], "r9": [8]}


def test_tokens_of_unknown_requests_are_skipped_and_counted() -> None:
    step = step_pb2.StepOutput(
        handles=[1, 2, 3], token_ids=[10, 20, 21, 30], token_counts=[1, 2, 1]
    )
    assert tokens_of(decode(step, 2)) == {"r1": [10], "r3": [30]}


@pytest.mark.parametrize(
    "columns",
    [
        {"handles": [1], "token_ids": [1, 2]},
        {"handles": [1, 2], "token_ids": [1, 2], "token_counts": [2]},
        {"handles": [1], "token_ids": [1], "token_counts": [2]},
    ],
)
def test_columns_that_do_not_fit(columns: dict[str, list[int]]) -> None:
    with pytest.raises(TTServeError):
        decode(step_pb2.StepOutput(**columns))  # type: ignore[arg-type]


def merged(**extra: Any) -> step_pb2.StepOutput:
    """Three tokens of one request in one message."""
    return step_pb2.StepOutput(
        handles=[1],
        token_ids=[5, 6, 7],
        token_counts=[3],
        extras=[step_pb2.RequestExtra(index=0, **extra)],
    )


def test_a_merged_message_is_taken_apart() -> None:
    step = merged(
        logprobs=[
            TokenLogprobs(
                chosen=-i, chosen_rank=i, top_token_ids=[i], top_logprobs=[-i]
            )
            for i in (1, 2, 3)
        ],
        finish=step_pb2.Finish(reason=step_pb2.FINISH_REASON_STOP, stop_token_id=7),
        prefill=step_pb2.PrefillReport(prompt_tokens=9, cached_tokens=4),
        events=[step_pb2.RequestEvent(kind=QUEUED, monotonic_seconds=3.5)],
    )
    decoded = decode(step)
    first, second, third = decoded.outputs.outputs
    assert first.prefill_stats is not None
    assert first.prefill_stats.num_cached_tokens == 4
    assert first.prefill_stats.num_computed_tokens == 5
    assert first.events is not None
    assert first.events[0].type is EngineCoreEventType.QUEUED
    assert first.events[0].timestamp == 3.5
    for later in (second, third):
        assert later.prefill_stats is None
        assert later.events is None
    logprobs = [output.new_logprobs for output in (first, second, third)]
    assert [lp.logprobs.tolist() for lp in logprobs if lp] == [
        [[-1, -1]],
        [[-2, -2]],
        [[-3, -3]],
    ]
    assert not first.finished
    assert not second.finished
    assert third.finish_reason is FinishReason.STOP
    assert third.stop_reason == 7
    assert decoded.finished_handles == [1]


def test_what_comes_before_the_first_token_waits_for_it() -> None:
    """vLLM would take an output without a token for the first token."""
    decoding = Decoding("r1")
    early = step_pb2.StepOutput(
        handles=[1],
        token_counts=[0],
        extras=[
            step_pb2.RequestExtra(
                index=0,
                events=[step_pb2.RequestEvent(kind=SCHEDULED, monotonic_seconds=1)],
                prefill=step_pb2.PrefillReport(prompt_tokens=3),
            )
        ],
    )
    assert decode_step(early, {1: decoding}.get).outputs.outputs == []
    token = step_pb2.StepOutput(handles=[1], token_ids=[5])
    (output,) = decode_step(token, {1: decoding}.get).outputs.outputs
    assert output.events is not None
    assert output.events[0].type is EngineCoreEventType.SCHEDULED
    assert output.prefill_stats is not None
    assert output.prefill_stats.num_prompt_tokens == 3


def test_an_end_without_a_token() -> None:
    step = step_pb2.StepOutput(
        handles=[1],
        token_counts=[0],
        extras=[
            step_pb2.RequestExtra(
                index=0,
                finish=step_pb2.Finish(reason=step_pb2.FINISH_REASON_LENGTH),
            )
        ],
    )
    (output,) = decode(step).outputs.outputs
    assert output.new_token_ids == []
    assert output.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (step_pb2.FINISH_REASON_STOP, FinishReason.STOP),
        (step_pb2.FINISH_REASON_LENGTH, FinishReason.LENGTH),
        (step_pb2.FINISH_REASON_REPETITION, FinishReason.REPETITION),
    ],
)
def test_ends_that_are_as_they_should_be(
    reason: step_pb2.FinishReason, expected: FinishReason
) -> None:
    decoded = decode(merged(finish=step_pb2.Finish(reason=reason)))
    assert decoded.outputs.outputs[-1].finish_reason is expected
    assert not decoded.failures


def test_a_failure_has_its_reason() -> None:
    error = TTServeError(Reason.STEP_FAILED, "why", metadata={"stepNumber": "7"})
    finish = step_pb2.Finish(
        reason=step_pb2.FINISH_REASON_ERROR, error=to_status(error)
    )
    decoded = decode(merged(finish=finish))
    (failure,) = decoded.failures
    assert failure.request_id == "r1"
    assert failure.error.reason is Reason.STEP_FAILED
    assert failure.error.metadata == {"stepNumber": "7"}
    assert decoded.outputs.outputs[-1].finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("reason", [step_pb2.FINISH_REASON_ABORT, 0, 99])
def test_ends_that_nobody_asked_for_are_failures(reason: Any) -> None:
    decoded = decode(merged(finish=step_pb2.Finish(reason=reason)))
    assert decoded.failures[0].error.reason is Reason.INTERNAL
    assert decoded.outputs.outputs[-1].finish_reason is FinishReason.ERROR


def test_unknown_events_are_ignored() -> None:
    event = step_pb2.RequestEvent(kind=77)  # type: ignore[arg-type]
    decoded = decode(merged(events=[event]))
    assert decoded.outputs.outputs[0].events is None


@pytest.mark.feature(155)
def test_stats() -> None:
    stats = step_pb2.SchedulerStats(
        running=2, waiting=3, kv_usage=0.5, prefix_cache_queries=8, prefix_cache_hits=4
    )
    found = decode(step_pb2.StepOutput(stats=stats)).outputs.scheduler_stats
    assert found is not None
    assert (found.num_running_reqs, found.num_waiting_reqs) == (2, 3)
    assert found.kv_cache_usage == 0.5
    assert found.prefix_cache_stats.hits == 4
    assert decode(step_pb2.StepOutput()).outputs.scheduler_stats is None


def test_impossible_logprobs_can_be_printed() -> None:
    entry = TokenLogprobs(chosen=math.nan, top_token_ids=[1], top_logprobs=[-math.inf])
    assert decode_logprobs(9, entry).logprobs.tolist() == [[-math.inf, -math.inf]]
