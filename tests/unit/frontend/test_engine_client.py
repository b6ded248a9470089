"""The engine client: admissions, aborts, losses; nothing stays open by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

from frontend.codec.outputs import Failure
from frontend.engine.client import LONG_PROMPT_TOKENS, GrpcEngineClient
from frontend.engine.device_requests import DeviceRequests
from frontend.engine.requests import Placement
from tests.support.fake_device import model
from ttserve.errors import Reason, TTServeError
from ttserve.status import to_status
from ttserve.v1 import device_pb2, step_pb2
from ttserve.v1.device_pb2 import AttachResponse
from ttserve.v1.generation_pb2 import Submission, SubmissionGroup

LOST = TTServeError(Reason.DEVICE_LOST, "gone")
FULL = TTServeError(Reason.QUEUE_FULL, "full", retry_after=1.0)


class FakeSession:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.submitted: list[Submission] = []
        self.aborted: list[tuple[list[int], int]] = []
        self.finished = 0

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)

    def abort(self, handles: Iterable[int], cause: int) -> None:
        self.aborted.append((list(handles), cause))

    def finish(self) -> None:
        self.finished += 1


class Wired:
    """A client on fake sessions with devices `a`, `b`, ..., and everything it told."""

    def __init__(self, devices: int = 1) -> None:
        self.counted: list[Reason] = []
        self.moves: list[tuple[str, Reason]] = []
        self.failures: list[Failure] = []
        served = model(max_sequence_tokens=100_000)
        self.client = GrpcEngineClient(served, self)
        self.client.on_failure = self.failures.append
        self.devices = [self.client.add_device("abc"[i]) for i in range(devices)]
        self.sessions = [self.connect(device) for device in self.devices]
        self.device = self.devices[0]
        self.session = self.sessions[0]

    def failed(self, reason: Reason) -> None:
        self.counted.append(reason)

    def moved(self, device: str, reason: Reason) -> None:
        self.moves.append((device, reason))

    def connect(self, device: DeviceRequests) -> FakeSession:
        session = FakeSession()
        ready: Any = session
        device.session_ready(ready)
        return session

    def drain(self, number: int = 0) -> None:
        """The device service with this number announces its end."""
        session: Any = self.sessions[number]
        self.devices[number].session_draining(session)

    async def submit(
        self, name: str, prompt_tokens: int = 2, placement: Placement | None = None
    ) -> asyncio.Future[None]:
        return await self.client.submit(
            request(name, prompt_tokens), "ext", placement or Placement()
        )

    async def outputs(self) -> list[EngineCoreOutput]:
        """Of the next step that has any."""
        while True:
            step = await self.client.get_output_async()
            if step.outputs:
                return step.outputs


def request(name: str, prompt_tokens: int = 2) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1] * prompt_tokens,
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=4),
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def accepted(handle: int) -> AttachResponse:
    return AttachResponse(accepted=device_pb2.SubmissionAccepted(handle=handle))


def rejected(handle: int, error: TTServeError) -> AttachResponse:
    return AttachResponse(
        rejected=device_pb2.SubmissionRejected(handle=handle, status=to_status(error))
    )


def step(handle: int, *, finish: bool = False) -> AttachResponse:
    output = step_pb2.StepOutput(handles=[handle], token_ids=[65])
    output.stats.running = 1
    output.stats.kv_usage = 0.5
    if finish:
        output.extras.add(index=0).finish.reason = step_pb2.FINISH_REASON_STOP
    return AttachResponse(step=output)


async def test_a_request_from_submission_to_its_end() -> None:
    wired = Wired()
    admission = await wired.submit("a")
    (sent,) = wired.session.submitted
    assert (sent.request_id, sent.external_request_id) == ("a", "ext")
    assert not admission.done()
    wired.device.take(accepted(sent.handle))
    await admission
    wired.device.take(step(sent.handle))
    wired.device.take(step(sent.handle, finish=True))
    assert len(wired.client) == 0
    first = await wired.client.get_output_async()
    last = await wired.client.get_output_async()
    assert [o.request_id for o in first.outputs] == ["a"]
    assert last.outputs[0].finish_reason is FinishReason.STOP
    assert not wired.failures
    assert not wired.counted


async def test_a_rejection() -> None:
    wired = Wired()
    admission = await wired.submit("a")
    wired.device.take(rejected(wired.session.submitted[0].handle, FULL))
    with pytest.raises(TTServeError) as refusal:
        await admission
    assert refusal.value.reason is Reason.QUEUE_FULL
    assert refusal.value.retry_after == 1.0
    assert len(wired.client) == 0
    assert wired.counted == [Reason.QUEUE_FULL]


async def test_a_request_that_must_not_be_sent() -> None:
    wired = Wired()
    wrong = request("a")
    wrong.priority = 2**40
    with pytest.raises(TTServeError):
        await wired.client.submit(wrong, "", Placement())
    assert not wired.session.submitted
    assert len(wired.client) == 0


async def test_long_prompts_are_encoded_beside_the_loop() -> None:
    wired = Wired()
    await wired.submit("a", LONG_PROMPT_TOKENS)
    assert len(wired.session.submitted[0].prompt_token_ids) == LONG_PROMPT_TOKENS


async def test_a_session_that_is_lost_while_encoding() -> None:
    wired = Wired()
    submitting = asyncio.create_task(wired.submit("a", 3 * LONG_PROMPT_TOKENS))
    await asyncio.sleep(0)
    wired.device.session_lost(LOST)
    admission = await submitting
    with pytest.raises(TTServeError):
        await admission
    assert not wired.session.submitted


async def test_loss_fails_what_is_open() -> None:
    wired = Wired()
    waiting, running = await wired.submit("w"), await wired.submit("r")
    wired.device.take(accepted(2))
    wired.device.session_lost(LOST)
    with pytest.raises(TTServeError):
        await waiting
    assert running.done()
    outputs = await wired.client.get_output_async()
    assert [(f.request_id, f.error) for f in wired.failures] == [("r", LOST)]
    assert [o.finish_reason for o in outputs.outputs] == [FinishReason.ERROR]
    assert wired.counted == [Reason.DEVICE_LOST] * 2
    assert wired.client.refusal is LOST
    with pytest.raises(TTServeError):
        await wired.submit("late")


async def test_failures_are_told_in_the_order_of_outputs() -> None:
    wired = Wired()
    await wired.submit("a")
    wired.device.take(accepted(1))
    wired.device.take(step(1))
    wired.device.session_lost(LOST)
    await wired.client.get_output_async()
    assert not wired.failures
    await wired.client.get_output_async()
    assert len(wired.failures) == 1


async def test_aborts() -> None:
    wired = Wired()
    await wired.submit("a")
    await wired.submit("b")
    wired.device.take(step(1))
    wired.client.abort(["a", "unknown"], device_pb2.ABORT_CAUSE_CLIENT)
    assert wired.session.aborted == [([1], device_pb2.ABORT_CAUSE_CLIENT)]
    await wired.client.abort_requests_async(["b"])
    assert wired.session.aborted[1] == ([2], device_pb2.ABORT_CAUSE_STOP_STRING)
    wired.device.take(step(1))
    await wired.client.get_output_async()
    idle = await wired.client.get_output_async()
    assert idle.scheduler_stats is not None
    assert idle.scheduler_stats.num_running_reqs == 0
    assert idle.scheduler_stats.kv_cache_usage == 0.5
    late = await wired.client.get_output_async()
    assert late.outputs == []


async def test_refusing_leaves_what_runs_alone() -> None:
    wired = Wired()
    await wired.submit("a")
    wired.device.take(accepted(1))
    draining = TTServeError(Reason.DRAINING, "bye")
    wired.client.refuse(draining)
    assert wired.client.refusal is draining
    wired.device.take(step(1))
    assert (await wired.client.get_output_async()).outputs
    wired.client.fail_everything(draining)
    assert wired.session.aborted == [([1], device_pb2.ABORT_CAUSE_SHUTDOWN)]
    await wired.client.get_output_async()
    assert wired.failures[0].error is draining


async def test_a_draining_device_gets_nothing_new() -> None:
    wired = Wired()
    await wired.submit("a")
    wired.drain()
    assert wired.client.refusal is not None
    assert wired.client.refusal.reason is Reason.DRAINING
    wired.device.take(step(1))
    assert (await wired.client.get_output_async()).outputs


async def test_groups_travel() -> None:
    wired = Wired()
    group = SubmissionGroup(group_id=4, count=2)
    await wired.submit("a", placement=Placement(group=group))
    assert wired.session.submitted[0].group == group


async def test_unknown_events_are_ignored() -> None:
    wired = Wired()
    wired.device.take(AttachResponse())
