"""The Inspector: state, steps, watching, step control."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from device_service import step_feed
from device_service.codec.recording_file import decode
from device_service.serving import ServiceOptions
from tests.support.rig import Rig
from tests.support.wire import Service, serving
from ttserve.errors import Reason
from ttserve.sim_model import sim_model_dir
from ttserve.status import from_rpc_error
from ttserve.v1 import inspector_pb2


@pytest_asyncio.fixture
async def controlled() -> AsyncIterator[Service]:
    """A service that may be paused and stepped."""
    async with serving(options=ServiceOptions(step_control=True)) as running:
        yield running


async def busy(service: Service, requests: int = 2) -> Any:
    """A frontend with some requests in the engine."""
    client = await service.attach("busy")
    for number in range(requests):
        await client.submit(
            request_id=f"r-{number}",
            external_request_id=f"x-{number}",
            stop__max_output_tokens=400,
        )
        await client.next("accepted")
    return client


async def test_state_shows_sessions_rows_and_waiting(service: Service) -> None:
    await busy(service, 10)
    service.engine.step()
    state = await service.inspector().GetState(inspector_pb2.GetStateRequest())
    assert state.instance_id == service.server.instance_id
    assert state.step_number == 1
    assert state.served_names == ["tiny", "tiny-alias"]
    [lane] = state.lanes
    assert lane.total_rows == 8
    assert [row.request_id for row in lane.rows] == [f"r-{n}" for n in range(8)]
    assert lane.rows[0].external_request_id == "x-0"
    assert lane.rows[0].session_number == 1
    assert lane.rows[0].output_tokens == 1
    assert [entry.request_id for entry in lane.waiting] == ["r-8", "r-9"]
    assert lane.waiting[0].reason == inspector_pb2.WAITING_REASON_CAPACITY
    [session] = state.sessions
    assert session.frontend_name == "busy"
    assert session.live_requests == 10
    assert session.peer.startswith("ipv4:127.0.0.1:")
    assert session.age_seconds > 0


async def test_sessions_that_ended_are_gone(service: Service) -> None:
    client = await service.attach()
    await client.call.done_writing()
    await client.ended()
    await asyncio.sleep(0.05)
    state = await service.inspector().GetState(inspector_pb2.GetStateRequest())
    assert not state.sessions


async def test_list_returns_the_newest_steps(service: Service) -> None:
    await busy(service)
    for _ in range(30):
        service.engine.step()
    inspector = service.inspector()
    answer = await inspector.ListSteps(inspector_pb2.ListStepsRequest())
    assert [step.number for step in answer.steps] == list(range(11, 31))
    answer = await inspector.ListSteps(inspector_pb2.ListStepsRequest(limit=2))
    [earlier, newest] = answer.steps
    assert (earlier.number, newest.number) == (29, 30)
    assert newest.phase == inspector_pb2.PHASE_DECODE
    assert newest.sampling_site == inspector_pb2.SAMPLING_SITE_HOST
    assert newest.overlap_reason == "sync_mode"
    assert newest.lanes[0].rows[1].request_id == "r-1"
    assert newest.lanes[0].rows[1].external_request_id == "x-1"


async def test_filters(service: Service) -> None:
    await busy(service, 1)
    for _ in range(3):
        service.engine.step()
    inspector = service.inspector()

    async def numbers(**chosen: Any) -> list[int]:
        answer = await inspector.ListSteps(
            inspector_pb2.ListStepsRequest(filter=inspector_pb2.StepFilter(**chosen))
        )
        return [step.number for step in answer.steps]

    assert await numbers(phase=inspector_pb2.PHASE_PREFILL) == [1]
    assert await numbers(phase=inspector_pb2.PHASE_DECODE) == [2, 3]
    assert await numbers(lane=0) == [1, 2, 3]
    assert await numbers(lane=1) == []
    assert await numbers(request_id="r-0") == [1, 2, 3]
    assert await numbers(request_id="nobody") == []


@pytest.mark.parametrize(
    "request_",
    [
        inspector_pb2.ListStepsRequest(limit=1001),
        inspector_pb2.ListStepsRequest(
            filter=inspector_pb2.StepFilter(phase=9)  # type: ignore[arg-type]
        ),
    ],
)
async def test_bad_list_requests(
    service: Service, request_: inspector_pb2.ListStepsRequest
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.inspector().ListSteps(request_)
    assert from_rpc_error(caught.value).reason is Reason.INVALID_FIELD


async def test_large_lists_fit_a_default_client() -> None:
    """1000 steps of 128 rows are more than 4 MiB; the newest of them are sent."""
    async with serving(rows_per_lane=128, num_blocks=600) as service:
        client = await service.attach()
        for number in range(128):
            await client.submit(
                request_id=f"{number:0>250}", stop__max_output_tokens=500
            )
        for _ in range(128):
            await client.next("accepted")
        for _ in range(200):
            service.engine.step()
        answer = await service.inspector().ListSteps(
            inspector_pb2.ListStepsRequest(limit=1000)
        )
        assert 20 < len(answer.steps) < 200
        assert answer.steps[-1].number == 200
        assert answer.ByteSize() < 3 << 20


# -- watching --------------------------------------------------------------


async def watching(service: Service, **chosen: Any) -> Any:
    """A watcher that has joined."""
    watch = service.inspector().WatchSteps(
        inspector_pb2.WatchStepsRequest(filter=inspector_pb2.StepFilter(**chosen))
    )
    await asyncio.sleep(0.1)
    return watch


async def test_watch_sees_every_step(service: Service) -> None:
    await busy(service)
    service.engine.step()
    all_steps = await watching(service)
    decodes = await watching(service, request_id="r-1")
    for _ in range(20):
        service.engine.step()
    for watch in (all_steps, decodes):
        numbers = [(await watch.read()).step.number for _ in range(20)]
        assert numbers == list(range(2, 22))
        watch.cancel()


async def test_engine_pays_only_while_somebody_watches(service: Service) -> None:
    await busy(service)
    first, second = await watching(service), await watching(service)
    assert has_listener(service)
    first.cancel()
    await asyncio.sleep(0.1)
    assert has_listener(service)
    second.cancel()
    await asyncio.sleep(0.1)
    assert not has_listener(service)


def has_listener(service: Service) -> bool:
    return bool(vars(service.engine.step_log)["_listeners"])


async def test_slow_watcher_is_told_how_many_steps_it_lost() -> None:
    async with serving(max_sequence_tokens=60_000, num_blocks=5000) as service:
        client = await service.attach()
        await client.submit(stop__max_output_tokens=50_000, request_id="r" * 256)
        await client.next("accepted")
        watch = await watching(service)
        steps = 4 * step_feed.MAX_UNREAD
        for _ in range(steps):  # without giving the loop a chance to write
            service.engine.step()
        seen = lost = 0
        while seen + lost < steps:
            message = await watch.read()
            if message.WhichOneof("event") == "lost_steps":
                lost += message.lost_steps
            else:
                seen += 1
                assert message.step.number == seen + lost
        assert lost > 0
        watch.cancel()


# -- step control ----------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Pause", inspector_pb2.PauseRequest()),
        ("Step", inspector_pb2.StepRequest()),
        ("Resume", inspector_pb2.ResumeRequest()),
        ("ResetPrefixCache", inspector_pb2.ResetPrefixCacheRequest()),
    ],
)
async def test_control_is_off_unless_enabled(
    service: Service, method: str, request_: Any
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(service.inspector(), method)(request_)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    error = from_rpc_error(caught.value)
    assert error.reason is Reason.STEP_CONTROL_DISABLED


async def test_pause_step_resume(controlled: Service) -> None:
    client = await busy(controlled, 1)
    inspector = controlled.inspector()
    controlled.engine.step()
    await client.next("step")
    answer = await inspector.Pause(inspector_pb2.PauseRequest())
    assert answer.step_number == 1
    assert controlled.engine.step() is None
    stepped = await inspector.Step(inspector_pb2.StepRequest(count=3))
    assert [step.number for step in stepped.steps] == [2, 3, 4]
    assert stepped.steps_run == 3
    state = await inspector.GetState(inspector_pb2.GetStateRequest())
    assert state.paused
    await inspector.Resume(inspector_pb2.ResumeRequest())
    assert controlled.engine.step() is not None


async def test_step_pauses_a_running_engine(controlled: Service) -> None:
    await busy(controlled, 1)
    stepped = await controlled.inspector().Step(inspector_pb2.StepRequest())
    assert stepped.steps_run == 1
    assert controlled.engine.step() is None


async def test_step_count_is_bounded(controlled: Service) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await controlled.inspector().Step(inspector_pb2.StepRequest(count=10_001))
    assert from_rpc_error(caught.value).metadata == {"field": "count"}


async def test_reset_prefix_cache(controlled: Service) -> None:
    inspector = controlled.inspector()
    request = inspector_pb2.ResetPrefixCacheRequest()
    assert (await inspector.ResetPrefixCache(request)).reset
    await busy(controlled)
    assert not (await inspector.ResetPrefixCache(request)).reset
    forced = inspector_pb2.ResetPrefixCacheRequest(preempt_running=True)
    assert (await inspector.ResetPrefixCache(forced)).reset


# -- recordings ------------------------------------------------------------


async def test_a_recording_comes_in_parts_whose_base64_can_be_joined(
    service: Service,
) -> None:
    with Rig(sim_model_dir()) as rig:
        for number in range(40):
            rig.submit([number + 1] * 60, max_tokens=150)
        rig.run()
        service.engine.kept = rig.engine.recording("rpc")
    call = service.inspector().DumpRecording(inspector_pb2.DumpRecordingRequest())
    parts = [answer.data async for answer in call]
    assert len(parts) > 1
    data = base64.b64decode("".join(base64.b64encode(it).decode() for it in parts))
    assert len(decode(data).steps) == len(rig.records)


async def test_before_the_first_turn_there_is_no_recording(service: Service) -> None:
    call = service.inspector().DumpRecording(inspector_pb2.DumpRecordingRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert from_rpc_error(caught.value).reason is Reason.NOT_READY
