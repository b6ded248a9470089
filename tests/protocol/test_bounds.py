"""Bounds of the gRPC port, and what its failures show: nothing of the inside."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from device_service.rpc import Containment
from device_service.serving import ServiceOptions
from device_service.transport import (
    CHANNEL_OPTIONS,
    MAX_METADATA_BYTES,
    MAX_STREAMS_PER_CONNECTION,
)
from tests.support.attach_client import AttachClient
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.errors import Reason
from ttserve.status import from_rpc_error
from ttserve.v1 import device_pb2, device_pb2_grpc, inspector_pb2

TOO_LARGE = 65 << 20  # the transport takes 64 MiB
UNPARSABLE = b"\xff\xff\xff"


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def test_one_session_too_many_is_turned_away() -> None:
    async with serving(options=ServiceOptions(max_sessions=2)) as service:
        first = await service.attach()
        await service.attach()
        error = await failure(AttachClient(service.channel()).call.read())
        assert from_rpc_error(error).reason is Reason.QUEUE_FULL
        first.call.cancel()
        await eventually(lambda: len(service.server.serving.sessions) == 1)
        await service.attach()


async def test_one_watcher_too_many_is_turned_away() -> None:
    async with serving(options=ServiceOptions(max_watchers=1)) as service:
        request = inspector_pb2.WatchStepsRequest()
        first = service.inspector().WatchSteps(request)
        client = await service.attach()
        await client.submit()
        with service.engine.ticking():
            await first.read()
            error = await failure(service.inspector().WatchSteps(request).read())
        assert from_rpc_error(error).reason is Reason.QUEUE_FULL
        first.cancel()


async def test_metadata_is_bounded(service: Service) -> None:
    get = device_pb2_grpc.DeviceStub(service.channel()).GetModel
    fits = [("x-some", "a" * (MAX_METADATA_BYTES // 2))]
    assert await get(device_pb2.GetModelRequest(), metadata=fits)
    large = [("x-some", "a" * MAX_METADATA_BYTES)]
    error = await failure(get(device_pb2.GetModelRequest(), metadata=large))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_messages_are_bounded_by_the_transport(service: Service) -> None:
    channel = service.channel(max_send_message_length=-1)
    generate: Any = channel.unary_stream("/ttserve.v1.Device/Generate", None, None)
    error = await failure(generate(bytes(TOO_LARGE), timeout=60).read())
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


SETTINGS, PING, GOAWAY = 4, 6, 7
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Type, flags and payload of HTTP/2's next frame."""
    head = await asyncio.wait_for(reader.readexactly(9), 10)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def test_streams_of_a_connection_are_bounded(service: Service) -> None:
    """The server says so itself, in HTTP/2's SETTINGS."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(HELLO)
    kind, _, payload = await next_frame(reader)
    writer.close()
    assert kind == SETTINGS
    settings = {
        int.from_bytes(payload[i : i + 2], "big"): int.from_bytes(
            payload[i + 2 : i + 6], "big"
        )
        for i in range(0, len(payload), 6)
    }
    assert settings[3] == MAX_STREAMS_PER_CONNECTION  # MAX_CONCURRENT_STREAMS
    assert settings[6] == MAX_METADATA_BYTES  # MAX_HEADER_LIST_SIZE


async def test_keepalive_of_an_idle_connection_is_never_too_much(
    service: Service,
) -> None:
    """gRPC's own servers send GOAWAY at the third ping within five minutes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.server.port)
    writer.write(HELLO)
    for number in range(20):
        ping = number.to_bytes(8, "big")
        writer.write(bytes([0, 0, 8, PING, 0, 0, 0, 0, 0]) + ping)
        while True:
            kind, flags, payload = await next_frame(reader)
            assert kind != GOAWAY, payload
            if (kind, flags, payload) == (PING, 1, ping):  # the answer to this one
                break
    writer.close()


METHODS = [
    "/ttserve.v1.Device/GetModel",
    "/ttserve.v1.Device/GetTokenizer",
    "/ttserve.v1.Device/Abort",
    "/ttserve.v1.Device/Generate",
    "/ttserve.v1.Device/Attach",
    "/ttserve.v1.Inspector/WatchSteps",
    "/ttserve.v1.Inspector/Step",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
]


@pytest.mark.parametrize("method", METHODS)
async def test_what_cannot_be_parsed_is_the_callers_error(
    service: Service, method: str
) -> None:
    call: Any = service.channel().stream_stream(method, None, None)
    error = await failure(call(iter([UNPARSABLE]), timeout=10).read())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert from_rpc_error(error).reason is Reason.INVALID_FIELD
    assert_shows_nothing(error)


class Broken:
    """A service of which every method fails."""

    async def unary(self, request: bytes, context: Any) -> bytes:
        raise RuntimeError("/secret/path")

    async def stream(self, request: bytes, context: Any) -> Any:
        yield b"first"
        raise RuntimeError("/secret/path")


async def test_a_defect_is_internal_and_shows_nothing() -> None:
    broken = Broken()
    server = grpc.aio.server(interceptors=(Containment(),), options=CHANNEL_OPTIONS)
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(broken.unary),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(broken.stream),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(broken.unary),
        "Stream": grpc.stream_stream_rpc_method_handler(broken.stream),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("broken.Service", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in handlers:
            start: Any = channel.unary_stream(f"/broken.Service/{name}", None, None)
            call = start(b"", timeout=10)
            if "Stream" in name and name != "StreamUnary":
                assert await call.read() == b"first"
            error = await failure(call.read())
            assert error.code() is grpc.StatusCode.INTERNAL
            assert from_rpc_error(error).reason is Reason.INTERNAL
            assert_shows_nothing(error)
    await server.stop(None)


def assert_shows_nothing(error: grpc.aio.AioRpcError) -> None:
    """One line, in the client's words, with exactly one ErrorInfo."""
    text = error.details() or ""
    assert text
    assert len(text.splitlines()) == 1
    for sign in ("Traceback", "Error(", "<class", "/", "Exception", ".py"):
        assert sign not in text
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    (detail,) = status.details
    assert detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)
