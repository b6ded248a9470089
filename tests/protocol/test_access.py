"""Who may call what on the gRPC port: every method, with every kind of token."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from device_service.access import Access
from device_service.security import GrpcSecurity
from device_service.serving import ServiceOptions
from tests.support.wire import Service, serving
from ttserve.channels import open_channel
from ttserve.client_security import ChannelSecurity
from ttserve.errors import Reason
from ttserve.status import from_rpc_error
from ttserve.tokens import Tokens
from ttserve.v1 import device_pb2, device_pb2_grpc, inspector_pb2, inspector_pb2_grpc

DEVICE, INSPECTOR, CONTROL = "device-token", "inspector-token", "control-token"
PROBE = "/grpc.health.v1.Health/Check"
STEP_CONTROL = {"Pause", "Step", "Resume", "ResetPrefixCache"}

THREE_TOKENS = GrpcSecurity(
    access=Access(Tokens([DEVICE]), Tokens([INSPECTOR]), Tokens([CONTROL]))
)
ONE_TOKEN = GrpcSecurity(access=Access(Tokens([DEVICE])))


@pytest_asyncio.fixture
async def guarded() -> AsyncIterator[Service]:
    """A service with a token for each scope, whose steps may be controlled."""
    options = ServiceOptions(step_control=True, vllm_grpc=True)
    async with serving(security=THREE_TOKENS, options=options) as service:
        yield service


async def methods_of(service: Service, token: str) -> list[str]:
    """Every method of every service, as reflection tells them."""
    stub = reflection_pb2_grpc.ServerReflectionStub(service.channel())

    async def ask(**question: str) -> Any:
        requests = [reflection_pb2.ServerReflectionRequest(**question)]
        call = stub.ServerReflectionInfo(iter(requests), metadata=bearing(token))
        return await anext(aiter(call))

    found = []
    services = (await ask(list_services="")).list_services_response.service
    for name in (each.name for each in services):
        answer = await ask(file_containing_symbol=name)
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            found += [
                f"/{name}/{method.name}"
                for declared in file.service
                if f"{file.package}.{declared.name}" == name
                for method in declared.method
            ]
    return found


def bearing(token: str | None) -> Sequence[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")] if token is not None else []


async def reason_of(
    channel: grpc.aio.Channel, method: str, metadata: Sequence[tuple[str, str]]
) -> Reason | None:
    """Why a call with an empty message is refused; None if it was let through."""
    start: Any = channel.unary_stream(method, None, None)
    call = start(b"", metadata=metadata, timeout=1)
    try:
        await call.read()
    except grpc.aio.AioRpcError as error:
        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
        return from_rpc_error(error).reason if error.code() in refused else None
    finally:
        call.cancel()
    return None


async def refusals(
    service: Service, metadata: Sequence[tuple[str, str]]
) -> dict[str, Reason | None]:
    channel = service.channel()
    methods = await methods_of(service, DEVICE)
    return {name: await reason_of(channel, name, metadata) for name in methods}


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        bearing(""),
        bearing("wrong"),
        bearing(DEVICE + "x"),
        [("authorization", f"Basic {DEVICE}")],
        [("authorization", DEVICE)],
        [("x-api-key", DEVICE)],
    ],
)
async def test_without_a_token_nothing_answers_but_the_probe(
    guarded: Service, metadata: Sequence[tuple[str, str]]
) -> None:
    found = await refusals(guarded, metadata)
    assert len(found) > 20
    assert found.pop(PROBE) is None
    assert set(found.values()) == {Reason.UNAUTHENTICATED}


async def test_a_method_that_does_not_exist_is_guarded_too(guarded: Service) -> None:
    channel = guarded.channel()
    for method in ("/ttserve.v1.Device/Nothing", "/x/y", "/ttserve.v1.device/Attach"):
        assert await reason_of(channel, method, []) is Reason.UNAUTHENTICATED


@pytest.mark.parametrize("token", [DEVICE, INSPECTOR, CONTROL])
async def test_a_token_opens_its_scope_and_no_other(
    guarded: Service, token: str
) -> None:
    found = await refusals(guarded, bearing(token))
    assert set(found.values()) <= {None, Reason.PERMISSION_DENIED}
    opened = {name for name, refused in found.items() if refused is None}
    for method in found:
        service, name = method.removeprefix("/").split("/")
        if service.startswith(("grpc.health", "grpc.reflection")):
            wanted = True
        elif name in STEP_CONTROL:
            wanted = token == CONTROL
        elif service in ("ttserve.v1.Inspector", "grpc.channelz.v1.Channelz"):
            wanted = token in (INSPECTOR, CONTROL)
        else:
            wanted = token == DEVICE
        assert (method in opened) is wanted, method


async def test_one_token_protects_everything() -> None:
    options = ServiceOptions(step_control=True, vllm_grpc=True)
    async with serving(security=ONE_TOKEN, options=options) as service:
        without = await refusals(service, [])
        assert {n for n, refused in without.items() if refused is None} == {PROBE}
        assert set((await refusals(service, bearing(DEVICE))).values()) == {None}


async def test_a_token_does_not_switch_step_control_on() -> None:
    async with serving(security=THREE_TOKENS) as service:
        pause = inspector_pb2_grpc.InspectorStub(service.channel()).Pause
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await pause(inspector_pb2.PauseRequest(), metadata=bearing(CONTROL))
    assert from_rpc_error(failed.value).reason is Reason.STEP_CONTROL_DISABLED


async def test_a_client_sends_the_token_that_a_method_asks_for(
    guarded: Service,
) -> None:
    security = ChannelSecurity(
        device_token=Tokens([DEVICE]), inspector_token=Tokens([INSPECTOR])
    )
    async with open_channel(guarded.address, (), security) as channel:
        model = await device_pb2_grpc.DeviceStub(channel).GetModel(
            device_pb2.GetModelRequest(), metadata=[("x-other", "kept")]
        )
        assert model.model.served_names[0] == "tiny"
        state = inspector_pb2_grpc.InspectorStub(channel).GetState
        with guarded.engine.ticking():
            assert (await state(inspector_pb2.GetStateRequest())).instance_id
        files = device_pb2_grpc.DeviceStub(channel).GetTokenizer(
            device_pb2.GetTokenizerRequest()
        )
        assert (await files.read()).file.name == "config.json"
