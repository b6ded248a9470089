"""Submissions on Attach: accepted, rejected, framed, grouped, aborted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams

from device_service.records import AbortCause
from tests.support.attach_client import submission
from tests.support.scripted_engine import scripted_token
from tests.support.wire import Service, serving
from ttserve.errors import Reason, TTServeError
from ttserve.v1 import device_pb2, generation_pb2, step_pb2

JSON = generation_pb2.StructuredOutput(json_object=True)


# -- rejected, and the stream goes on --------------------------------------

REFUSED: list[tuple[str, dict[str, Any], Reason, str]] = [
    ("no request id", {"request_id": ""}, Reason.INVALID_FIELD, "request_id"),
    ("long request id", {"request_id": "é" * 129}, Reason.INVALID_FIELD, "request_id"),
    ("no prompt", {"prompt_token_ids": []}, Reason.INVALID_FIELD, "prompt_token_ids"),
    (
        "prompt outside the vocabulary",
        {"prompt_token_ids": [1, 1000]},
        Reason.INVALID_FIELD,
        "prompt_token_ids",
    ),
    ("no sampling", {"sampling": None}, Reason.INVALID_FIELD, "sampling"),
    ("no stop rules", {"stop": None}, Reason.INVALID_FIELD, "stop"),
    (
        "no most tokens",
        {"stop__max_output_tokens": None},
        Reason.INVALID_FIELD,
        "stop.max_output_tokens",
    ),
    ("priority", {"priority": 1}, Reason.UNSUPPORTED, "priority"),
    (
        "thinking budget",
        {"sampling__thinking_token_budget": 5},
        Reason.UNSUPPORTED,
        "sampling.thinking_token_budget",
    ),
    (
        "group of one",
        {"group": generation_pb2.SubmissionGroup(group_id=1, count=1)},
        Reason.INVALID_FIELD,
        "group.count",
    ),
    (
        "group that can never be queued",
        {"group": generation_pb2.SubmissionGroup(group_id=1, count=5_000_000)},
        Reason.INVALID_FIELD,
        "group.count",
    ),
    (
        "constraint of a later version",
        {"structured_output": generation_pb2.StructuredOutput()},
        Reason.INVALID_FIELD,
        "structured_output.constraint",
    ),
    (
        "large grammar",
        {
            "structured_output": generation_pb2.StructuredOutput(
                grammar="x" * (64 * 1024 + 1)
            )
        },
        Reason.INVALID_FIELD,
        "structured_output",
    ),
]


@pytest.mark.parametrize(
    ("changes", "reason", "field"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
async def test_refused_in_band(
    service: Service, changes: dict[str, Any], reason: Reason, field: str
) -> None:
    client = await service.attach()
    handle = await client.submit(**changes)
    rejected, error = await client.rejection()
    assert rejected == handle
    assert (error.reason, error.metadata["field"]) == (reason, field)
    assert not service.engine.jobs


async def test_stream_lives_on_after_a_rejection(service: Service) -> None:
    client = await service.attach()
    await client.submit(prompt_token_ids=[])
    await client.rejection()
    handle = await client.submit()
    with service.engine.ticking():
        assert len((await client.outputs(handle))[handle].token_ids) == 4


async def test_context_is_filled_to_the_last_token(service: Service) -> None:
    client = await service.attach()
    await client.submit(prompt_token_ids=[1] * 511, stop__max_output_tokens=1)
    await client.next("accepted")


async def test_prompt_too_long_says_the_numbers(service: Service) -> None:
    client = await service.attach()
    await client.submit(prompt_token_ids=[1] * 511, stop__max_output_tokens=2)
    _, error = await client.rejection()
    assert error.reason is Reason.PROMPT_TOO_LONG
    assert error.metadata == {
        "promptTokens": "511",
        "maxOutputTokens": "2",
        "maxSequenceTokens": "512",
    }
    assert all(number in error.message for number in ("511", "2", "513", "512"))


async def test_prompt_that_can_never_fit_the_kv_cache() -> None:
    async with serving(num_blocks=5) as service:  # 4 usable blocks of 16 tokens
        client = await service.attach()
        await client.submit(prompt_token_ids=[1] * 63, stop__max_output_tokens=1)
        await client.next("accepted")
        await client.submit(prompt_token_ids=[1] * 64, stop__max_output_tokens=1)
        _, error = await client.rejection()
        assert error.reason is Reason.PROMPT_TOO_LONG
        assert error.metadata["maxSequenceTokens"] == "64"


async def test_request_id_is_unique_over_all_streams(service: Service) -> None:
    first, second = await service.attach("a"), await service.attach("b")
    handle = await first.submit(request_id="same")
    await first.next("accepted")
    await second.submit(request_id="same")
    _, error = await second.rejection()
    assert error.reason is Reason.REQUEST_ID_IN_USE
    assert error.metadata == {"requestId": "same"}
    with service.engine.ticking():
        await first.outputs(handle)
        await second.submit(request_id="same")  # free again
        await second.next("accepted")


async def test_priority_is_taken_with_priority_scheduling() -> None:
    async with serving(policy="priority") as service:
        client = await service.attach()
        await client.submit(request_id="urgent", priority=-3)
        await client.next("accepted")
        assert service.engine.jobs["urgent"].request.priority == -3


# -- queue bound -----------------------------------------------------------


async def test_queue_bound_counts_all_streams() -> None:
    async with serving(rows_per_lane=2, max_queued_requests=2) as service:
        first, second = await service.attach("a"), await service.attach("b")
        handles = [await first.submit(request_id=f"a-{n}") for n in range(3)]
        for _ in handles:
            await first.next("accepted")
        await second.submit(request_id="b-0")
        await second.next("accepted")
        await second.submit(request_id="b-1")
        _, error = await second.rejection()
        assert error.reason is Reason.QUEUE_FULL
        assert error.metadata == {"waitingRequests": "2", "maxQueuedRequests": "2"}
        assert error.retry_after == 1.0
        with service.engine.ticking():
            outputs = await first.outputs(*handles)
            assert all(len(output.token_ids) == 4 for output in outputs.values())
        await second.submit(request_id="b-2")
        while (await second.read()).WhichOneof("event") != "accepted":
            pass


# -- frames ----------------------------------------------------------------


@pytest.mark.parametrize("size", [1 << 10, 1 << 18])
async def test_submission_in_frames(service: Service, size: int) -> None:
    client = await service.attach()
    prompt = [(i * 7) % 1000 for i in range(400)]
    await client.frames(
        submission(3, prompt_token_ids=prompt, cache_salt="s" * 1000), size
    )
    await client.next("accepted")
    assert service.engine.jobs["request-3"].request.prompt_token_ids == prompt


async def test_frames_of_two_submissions_interleave(service: Service) -> None:
    client = await service.attach()
    messages = {7: submission(7), 8: submission(8, prompt_token_ids=[9])}
    data = {handle: m.SerializeToString() for handle, m in messages.items()}
    for last in (False, True):
        for handle, content in data.items():
            half = (
                content[len(content) // 2 :] if last else content[: len(content) // 2]
            )
            await client.send(
                frame=device_pb2.SubmissionFrame(handle=handle, data=half, last=last)
            )
    for _ in messages:
        await client.next("accepted")
    assert set(service.engine.jobs) == {"request-7", "request-8"}


async def test_limits_12_mb_is_invalid_argument_never_a_transport_error(
    service: Service,
) -> None:
    client = await service.attach()
    huge = submission(1, prompt_token_ids=[2**31] * 2_400_000)  # 5 bytes each
    await client.frames(huge, 1 << 18)
    handle, error = await client.rejection()
    assert handle == 1
    assert error.reason is Reason.INVALID_FIELD
    assert error.metadata["maxSubmissionBytes"] == str(1 << 20)
    await client.ping(5)  # the rest of the frames is swallowed
    assert (await client.next("pong")).pong.sequence == 5
    await client.send(submit=huge)  # in one message
    handle, error = await client.rejection()
    assert (handle, error.reason) == (1, Reason.INVALID_FIELD)


async def test_too_large_frame_is_rejected(service: Service) -> None:
    client = await service.attach()
    await client.send(
        frame=device_pb2.SubmissionFrame(handle=4, data=bytes((1 << 18) + 1))
    )
    handle, error = await client.rejection()
    assert (handle, error.metadata["field"]) == (4, "frame.data")


@pytest.mark.parametrize("content", ["garbage", "other handle"])
async def test_frames_that_hold_something_else(service: Service, content: str) -> None:
    client = await service.attach()
    data = b"\xff" * 9 if content == "garbage" else submission(2).SerializeToString()
    await client.send(frame=device_pb2.SubmissionFrame(handle=1, data=data, last=True))
    handle, error = await client.rejection()
    assert (handle, error.reason) == (1, Reason.INVALID_FIELD)


async def test_abort_between_frames(service: Service) -> None:
    client = await service.attach()
    data = submission(1).SerializeToString()
    await client.send(frame=device_pb2.SubmissionFrame(handle=1, data=data[:9]))
    await client.abort(1)
    await client.send(
        frame=device_pb2.SubmissionFrame(handle=1, data=data[9:], last=True)
    )
    await client.ping(1)
    await client.next("pong")
    assert not service.engine.jobs


# -- n > 1 -----------------------------------------------------------------


def child(group: int, count: int) -> generation_pb2.SubmissionGroup:
    return generation_pb2.SubmissionGroup(group_id=group, count=count)


async def test_children_are_admitted_together(service: Service) -> None:
    client = await service.attach()
    await client.submit(group=child(1, 3))
    alone = await client.submit()
    assert (await client.next("accepted")).accepted.handle == alone
    await client.submit(group=child(1, 3))
    assert len(service.engine.jobs) == 1
    await client.submit(group=child(1, 3))
    answers = [(await client.next("accepted")).accepted.handle for _ in range(3)]
    assert answers == [1, 3, 4]
    assert service.engine.batches[-1] == ["request-1", "request-3", "request-4"]


async def test_children_are_admitted_all_or_none() -> None:
    async with serving(rows_per_lane=2, max_queued_requests=2) as service:
        client = await service.attach()
        await client.submit()
        await client.submit()
        await client.next("accepted")
        await client.next("accepted")
        handles = [await client.submit(group=child(1, 3)) for _ in range(3)]
        for handle in handles:
            rejected, error = await client.rejection()
            assert (rejected, error.reason) == (handle, Reason.QUEUE_FULL)
        assert len(service.engine.jobs) == 2


async def test_one_bad_child_refuses_its_siblings(service: Service) -> None:
    client = await service.attach()
    await client.submit(group=child(1, 2))
    await client.submit(group=child(1, 2), prompt_token_ids=[])
    for handle in (1, 2):
        rejected, error = await client.rejection()
        assert rejected == handle
        assert error.metadata["field"] == "prompt_token_ids"
    assert not service.engine.jobs


async def test_children_that_disagree_about_their_number(service: Service) -> None:
    client = await service.attach()
    await client.submit(group=child(1, 2))
    await client.submit(group=child(1, 3))
    for _ in range(2):
        _, error = await client.rejection()
        assert error.metadata["field"] == "group.count"


async def test_half_close_answers_children_without_siblings(service: Service) -> None:
    client = await service.attach()
    await client.submit(group=child(1, 2))
    await client.call.done_writing()
    handle, error = await client.rejection()
    assert (handle, error.metadata["field"]) == (1, "group")
    assert await client.ended() is None


async def test_aborted_child_does_not_hold_its_siblings_up(service: Service) -> None:
    client = await service.attach()
    await client.submit(group=child(1, 3))
    await client.submit(group=child(1, 3))
    await client.abort(1)
    await client.submit(group=child(1, 3))
    answers = [(await client.next("accepted")).accepted.handle for _ in range(2)]
    assert answers == [2, 3]


# -- aborts ----------------------------------------------------------------


async def test_abort_silences_the_handle(service: Service) -> None:
    client = await service.attach()
    stopped = await client.submit(request_id="stopped")
    other = await client.submit(request_id="other")
    for _ in range(2):
        await client.next("accepted")
    service.engine.step()
    await client.next("step")
    await client.abort(stopped, cause=device_pb2.ABORT_CAUSE_STOP_STRING)
    await client.ping()
    await client.next("pong")
    assert service.engine.aborts == [("stopped", AbortCause.STOP_STRING)]
    with service.engine.ticking():
        found = await client.outputs(other)
    assert set(found) == {other}


async def test_abort_frees_the_request_id_and_the_place() -> None:
    async with serving(rows_per_lane=1, max_queued_requests=0) as service:
        client = await service.attach()
        handle = await client.submit(request_id="r")
        await client.next("accepted")
        await client.abort(handle)
        with service.engine.ticking():
            await client.next("step")  # the gauges after the abort
        await client.submit(request_id="r")
        await client.next("accepted")


async def test_unary_abort_ends_the_request_of_any_stream(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit(request_id="r")
    await client.next("accepted")
    device = service.device()
    answer = await device.Abort(device_pb2.AbortRequest(request_id="r"))
    assert answer.found
    with service.engine.ticking():
        output = (await client.outputs(handle))[handle]
    assert output.finish is not None
    assert output.finish.reason == step_pb2.FINISH_REASON_ABORT
    answer = await device.Abort(device_pb2.AbortRequest(request_id="r"))
    assert not answer.found
    assert service.engine.aborts == [("r", AbortCause.INSPECTOR)]


# -- grammars --------------------------------------------------------------


async def test_grammar_is_compiled_before_the_first_token(service: Service) -> None:
    service.grammars.hold = True
    client = await service.attach()
    handle = await client.submit(structured_output=JSON)
    await client.next("accepted")
    assert service.engine.step() is None
    [(request_id, on_ready)] = service.grammars.held
    on_ready(request_id, None)
    service.engine.step()
    assert (await client.next("step")).step.handles == [handle]


async def test_grammar_that_cannot_be_compiled_ends_its_request(
    service: Service,
) -> None:
    service.grammars.hold = True
    client = await service.attach()
    handle = await client.submit(structured_output=JSON)
    await client.next("accepted")
    [(request_id, on_ready)] = service.grammars.held
    on_ready(request_id, TTServeError(Reason.GRAMMAR, "no such thing"))
    with service.engine.ticking():
        output = (await client.outputs(handle))[handle]
    assert output.finish is not None
    assert output.finish.reason == step_pb2.FINISH_REASON_ERROR
    assert output.finish.error.message == "no such thing"


class SlowChecks:
    """A grammar check that waits for the test."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, params: SamplingParams) -> None:
        assert self.go_on.wait(10)


async def test_slow_check_delays_neither_pings_nor_other_requests() -> None:
    checks = SlowChecks()
    async with serving(normalise=checks) as service:
        client = await service.attach()
        slow = await client.submit(structured_output=JSON)
        await client.ping(1)
        await client.next("pong")
        quick = await client.submit()
        assert (await client.next("accepted")).accepted.handle == quick
        checks.go_on.set()
        assert (await client.next("accepted")).accepted.handle == slow


async def test_slow_checks_hold_up_no_stream() -> None:
    """More slow checks than there are threads for them, and large messages."""
    checks = SlowChecks()
    async with serving(normalise=checks, max_queued_requests=40) as service:
        client = await service.attach()
        for _ in range(20):
            await client.submit(structured_output=JSON)
        other = await service.attach("other")
        await other.send(submit=submission(1, cache_salt="x" * (1 << 20)))
        _, error = await other.rejection()
        assert error.metadata["field"] == "submission"
        await other.frames(submission(2, cache_salt="x" * 500_000), 1 << 18)
        for each in (client, other):
            await each.ping(9)
            assert (await each.next("pong")).pong.sequence == 9
        checks.go_on.set()


async def test_abort_during_a_slow_check_leaves_nothing() -> None:
    checks = SlowChecks()
    async with serving(normalise=checks) as service:
        client = await service.attach()
        handle = await client.submit(structured_output=JSON)
        await client.abort(handle)
        await client.ping(1)
        await client.next("pong")
        checks.go_on.set()
        await asyncio.sleep(0.1)
        await client.ping(2)
        assert (await client.next("pong")).pong.sequence == 2
        assert not service.engine.batches


async def test_stream_that_ends_during_a_slow_check_leaves_nothing() -> None:
    checks = SlowChecks()
    async with serving(normalise=checks) as service:
        client = await service.attach()
        await client.submit(structured_output=JSON)
        await client.ping(1)
        await client.next("pong")
        client.call.cancel()
        await asyncio.sleep(0.1)
        checks.go_on.set()
        await asyncio.sleep(0.1)
        assert not service.engine.batches


async def test_refused_grammar_is_rejected() -> None:
    def refuse(params: SamplingParams) -> None:
        raise TTServeError(Reason.GRAMMAR, "xgrammar cannot do this")

    async with serving(normalise=refuse) as service:
        client = await service.attach()
        await client.submit(structured_output=JSON)
        _, error = await client.rejection()
        assert error.reason is Reason.GRAMMAR


async def test_defect_in_a_check_ends_that_request_only() -> None:
    def fail(params: SamplingParams) -> None:
        raise RuntimeError("a defect")

    async with serving(normalise=fail) as service:
        client = await service.attach()
        await client.submit(structured_output=JSON)
        _, error = await client.rejection()
        assert error.reason is Reason.INTERNAL
        handle = await client.submit()
        with service.engine.ticking():
            found = await client.outputs(handle)
        assert found[handle].token_ids[0] == scripted_token([5, 6, 7], 0)
