"""From bound to SERVING to stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from device_service.server import DeviceServer
from device_service.serving import ServiceOptions
from tests.support.attach_client import AttachClient
from tests.support.waiting import eventually
from tests.support.wire import BUNDLE, MODEL, Service, serving
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.status import from_rpc_error
from ttserve.v1 import device_pb2, inspector_pb2, step_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", "ttserve.v1.Device", "ttserve.v1.Inspector")


@pytest_asyncio.fixture
async def starting() -> AsyncIterator[Service]:
    """A service that is bound and nothing more."""
    service = Service()
    await service.start()
    yield service
    await service.close()


async def health(service: Service) -> set[Any]:
    """What the health service says about everything."""
    stub: Any = health_pb2_grpc.HealthStub(service.channel())
    answers = [
        await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in NAMES
    ]
    return {answer.status for answer in answers}


async def error_of(call: Any) -> TTServeError:
    """What a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


# -- start -----------------------------------------------------------------


async def test_taken_port_is_one_line(service: Service) -> None:
    other = DeviceServer(service.address, ServiceOptions())
    with pytest.raises(
        StartupError, match=f"--listen {service.address}: cannot listen"
    ):
        await other.start()
    await other.stop()


async def test_before_the_model_is_known(starting: Service) -> None:
    device = starting.device()
    assert await health(starting) == {NOT_SERVING}
    for call in (
        device.GetModel(device_pb2.GetModelRequest()),
        device.GetTokenizer(device_pb2.GetTokenizerRequest()).read(),
        device.Generate(device_pb2.GenerateRequest(prompt_token_ids=[1])).read(),
        device.Abort(device_pb2.AbortRequest(request_id="r")),
        starting.inspector().GetState(inspector_pb2.GetStateRequest()),
        AttachClient(starting.channel()).read(),
    ):
        assert (await error_of(call)).reason is Reason.NOT_READY


async def test_model_and_tokenizer_before_warm_up(starting: Service) -> None:
    starting.server.publish(MODEL, BUNDLE)
    device = starting.device()
    answer = await device.GetModel(device_pb2.GetModelRequest())
    assert answer.model.served_names == ["tiny", "tiny-alias"]
    part = await device.GetTokenizer(device_pb2.GetTokenizerRequest()).read()
    assert part.file.name == "config.json"
    assert await health(starting) == {NOT_SERVING}
    for call in (
        device.Generate(device_pb2.GenerateRequest(prompt_token_ids=[1])).read(),
        AttachClient(starting.channel()).read(),
    ):
        assert (await error_of(call)).reason is Reason.NOT_READY


async def test_serving_after_warm_up(starting: Service) -> None:
    await starting.open()
    assert await health(starting) == {SERVING}
    assert (await AttachClient(starting.channel()).open()).session_number == 1


async def test_it_is_live_from_the_start_to_the_end_of_a_drain(
    starting: Service,
) -> None:
    stub: Any = health_pb2_grpc.HealthStub(starting.channel())
    live = health_pb2.HealthCheckRequest(service="live")
    assert (await stub.Check(live)).status == SERVING
    await starting.open()
    await starting.server.drain(0.1)
    assert await health(starting) == {NOT_SERVING}
    assert (await stub.Check(live)).status == SERVING


async def test_health_watch_sees_the_change(starting: Service) -> None:
    stub: Any = health_pb2_grpc.HealthStub(starting.channel())
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="ttserve.v1.Device"))
    assert (await watch.read()).status == NOT_SERVING
    await starting.open()
    assert (await watch.read()).status == SERVING
    watch.cancel()


# -- drain -----------------------------------------------------------------


async def test_drain_lets_running_requests_finish(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    draining = asyncio.create_task(service.server.drain(10.0))
    assert (await client.next("draining")).draining.grace_ms == 10_000
    assert await health(service) == {NOT_SERVING}

    await client.submit()
    _, error = await client.rejection()
    assert error.reason is Reason.DRAINING
    refused = AttachClient(service.channel())
    assert (await error_of(refused.read())).reason is Reason.DRAINING
    call = service.device().Generate(device_pb2.GenerateRequest(prompt_token_ids=[1]))
    assert (await error_of(call.read())).reason is Reason.DRAINING

    with service.engine.ticking():
        output = (await client.outputs(handle))[handle]
        assert len(output.token_ids) == 4
    ended = await client.ended()
    assert ended is not None
    assert ended.reason is Reason.DRAINING
    await asyncio.wait_for(draining, 2.0)
    assert service.engine.died.done()


async def test_drain_ends_what_is_left_after_the_grace(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    call = service.device().Generate(
        device_pb2.GenerateRequest(prompt_token_ids=[10], request_id="g")
    )
    await eventually(lambda: "g" in service.engine.jobs)
    began = time.monotonic()
    draining = asyncio.create_task(service.server.drain(0.2))
    output = (await client.outputs(handle))[handle]
    assert output.finish is not None
    assert output.finish.reason == step_pb2.FINISH_REASON_ERROR
    assert 0.15 < time.monotonic() - began < 2.0
    last = await call.read()
    assert last.finish.reason == step_pb2.FINISH_REASON_ERROR
    ended = await client.ended()
    assert ended is not None
    assert ended.reason is Reason.DRAINING
    await draining


async def test_drain_of_an_idle_service_is_quick(service: Service) -> None:
    client = await service.attach()
    began = time.monotonic()
    draining = asyncio.create_task(service.server.drain(30.0))
    await client.next("draining")
    await client.call.done_writing()
    ended = await client.ended()
    assert ended is not None
    assert ended.reason is Reason.DRAINING
    await draining
    await service.server.stop()
    assert time.monotonic() - began < 3.0


async def test_drain_waits_for_frontends_that_have_not_read_everything() -> None:
    """One that half-closes has. The other may be a stranger to the protocol."""
    async with serving(options=ServiceOptions(silence_limit=1.5)) as service:
        slow, stranger = await service.attach("slow"), await service.attach("stranger")
        began = time.monotonic()
        draining = asyncio.create_task(service.server.drain(30.0))
        while time.monotonic() - began < 1.0:
            await slow.ping()
            await stranger.ping()
            await asyncio.sleep(0.1)
        assert not draining.done()
        await slow.call.done_writing()
        await slow.ended()
        assert not draining.done()
        ended = await stranger.ended()
        assert ended is not None
        assert ended.reason is Reason.DRAINING
        await draining
        assert 1.4 < time.monotonic() - began < 4.0


async def test_drain_does_not_wait_for_a_reader_that_never_reads(
    service: Service,
) -> None:
    client = await service.attach("slow", **{"http2.bdp_probe": 0})
    for number in range(12):
        await client.submit(request_id=f"{number}" * 60_000)
    await client.submit()
    await eventually(lambda: bool(service.engine.jobs))
    began = time.monotonic()
    await service.server.drain(0.1)
    await service.server.stop()
    assert time.monotonic() - began < 5.0


async def test_drain_sends_watchers_away(service: Service) -> None:
    watch = service.inspector().WatchSteps(inspector_pb2.WatchStepsRequest())
    client = await service.attach()
    await client.submit(stop__max_output_tokens=1)
    await client.next("accepted")
    await asyncio.sleep(0.1)
    service.engine.step()
    await service.server.drain(0.1)
    assert (await watch.read()).step.number == 1
    assert (await error_of(watch.read())).reason is Reason.DRAINING


async def test_draining_is_not_said_before_opened(service: Service) -> None:
    client = AttachClient(service.channel())
    reading = asyncio.create_task(client.read())
    await asyncio.sleep(0.1)
    await service.server.drain(0.1)
    assert (await error_of(reading)).reason is Reason.DRAINING


async def test_drain_before_the_service_is_open(starting: Service) -> None:
    await starting.server.drain(1.0)
    await starting.server.stop()


# -- the engine dies -------------------------------------------------------


async def test_engine_that_dies_answers_everything_first(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    call = service.device().Generate(
        device_pb2.GenerateRequest(prompt_token_ids=[10], request_id="g")
    )
    await eventually(lambda: "g" in service.engine.jobs)
    ended = asyncio.create_task(service.server.engine_ended())
    service.engine.die(RuntimeError("the mesh is on fire"))

    output = (await client.outputs(handle))[handle]
    assert output.finish is not None
    assert output.finish.reason == step_pb2.FINISH_REASON_ERROR
    error = await client.ended()
    assert error is not None
    assert error.reason is Reason.MESH_POISONED
    assert (await call.read()).finish.reason == step_pb2.FINISH_REASON_ERROR
    cause = await ended
    assert isinstance(cause, RuntimeError)
    assert await health(service) == {NOT_SERVING}

    refused = await error_of(AttachClient(service.channel()).read())
    assert refused.reason is Reason.MESH_POISONED
    state = service.inspector().GetState(inspector_pb2.GetStateRequest())
    await asyncio.wait([asyncio.ensure_future(error_or_none(state))], timeout=5)


async def error_or_none(call: Any) -> None:
    """Wait for a call, whatever becomes of it."""
    try:
        await call
    except grpc.aio.AioRpcError:
        return


async def test_engine_that_stops_is_no_error(service: Service) -> None:
    ended = asyncio.create_task(service.server.engine_ended())
    await service.server.drain(0.1)
    assert await ended is None


async def test_waiting_for_the_end_can_be_given_up(service: Service) -> None:
    """To cancel the wait must not cancel the engine's own future."""
    ended = asyncio.create_task(service.server.engine_ended())
    await asyncio.sleep(0)
    ended.cancel()
    await asyncio.gather(ended, return_exceptions=True)
    assert not service.engine.died.done()
    await service.server.drain(0.1)
    assert service.engine.died.result() is None
