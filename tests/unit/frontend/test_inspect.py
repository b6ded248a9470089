"""One stream per device service for any number of browsers, bounded for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from frontend.inspect import reader as reader_module
from frontend.inspect.page import FILES, inspect_routes
from frontend.inspect.reader import Reader
from frontend.inspect.relay import MAX_READERS, Relays, TooManyReaders
from tests.support.waiting import eventually
from ttserve.v1 import inspector_pb2, inspector_pb2_grpc


class Inspector(inspector_pb2_grpc.InspectorServicer):
    """A device service whose steps happen when the test says so."""

    def __init__(self) -> None:
        self.instance_id = "one"
        self.streams: set[asyncio.Queue[inspector_pb2.WatchStepsResponse]] = set()
        self.opened = 0
        self.steps: list[inspector_pb2.StepRecord] = []

    def step(self, number: int) -> None:
        record = inspector_pb2.StepRecord(
            number=number, phase=inspector_pb2.PHASE_DECODE, phase_reason="because"
        )
        self.steps.append(record)
        self.send(inspector_pb2.WatchStepsResponse(step=record))

    def send(self, response: inspector_pb2.WatchStepsResponse) -> None:
        for stream in self.streams:
            stream.put_nowait(response)

    async def GetState(
        self, request: Any, context: Any
    ) -> inspector_pb2.GetStateResponse:
        return inspector_pb2.GetStateResponse(
            instance_id=self.instance_id, step_number=len(self.steps)
        )

    async def ListSteps(
        self, request: Any, context: Any
    ) -> inspector_pb2.ListStepsResponse:
        return inspector_pb2.ListStepsResponse(steps=self.steps[-request.limit :])

    async def WatchSteps(self, request: Any, context: Any) -> AsyncIterator[Any]:
        queue: asyncio.Queue[inspector_pb2.WatchStepsResponse] = asyncio.Queue()
        self.streams.add(queue)
        self.opened += 1
        try:
            while True:
                yield await queue.get()
        finally:
            self.streams.discard(queue)


class Device:
    """The inspector on a port, to be stopped and started again."""

    def __init__(self) -> None:
        self.inspector = Inspector()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        inspector_pb2_grpc.add_InspectorServicer_to_server(self.inspector, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)


@pytest_asyncio.fixture
async def device() -> AsyncIterator[Device]:
    running = Device()
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def relays(device: Device) -> AsyncIterator[Relays]:
    backoff = [
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.initial_reconnect_backoff_ms", 50),
    ]
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{device.port}", options=backoff
    ) as channel:
        yield Relays(lambda: {"first": channel, "second": channel})


async def news(reader: Reader) -> dict[str, Any]:
    """The next message, as the page reads it."""
    message = await asyncio.wait_for(reader.take(), 20)
    assert message is not None
    assert message.startswith(b"data: ")
    assert message.endswith(b"\n\n")
    found: dict[str, Any] = json.loads(message[6:])
    return found


async def message_with(reader: Reader, field: str) -> dict[str, Any]:
    """The next message that has the field."""
    while field not in (message := await news(reader)):
        pass
    return message


async def test_two_browsers_share_a_stream(device: Device, relays: Relays) -> None:
    device.inspector.step(1)
    name, first = relays.join(None)
    assert name == "first"
    message = await message_with(first, "steps")
    assert [step["number"] for step in message["steps"]] == [1]
    await eventually(lambda: len(device.inspector.streams) == 1)
    _, second = relays.join("first")
    message = await news(second)
    assert message["devices"] == ["first", "second"]
    assert message["trouble"] == ""
    assert message["state"]["instance_id"] == "one"
    assert [step["number"] for step in message["steps"]] == [1]
    device.inspector.step(2)
    for reader in (first, second):
        message = await message_with(reader, "steps")
        assert [step["number"] for step in message["steps"]] == [2]
        assert message["steps"][0]["phase_reason"] == "because"
    assert device.inspector.opened == 1
    relays.leave("first", first)
    relays.leave("first", second)
    await eventually(lambda: not device.inspector.streams)


async def test_return_of_a_device_service(device: Device, relays: Relays) -> None:
    _, reader = relays.join(None)
    await message_with(reader, "state")
    await eventually(lambda: len(device.inspector.streams) == 1)
    device.inspector.step(1)
    await message_with(reader, "steps")
    await device.stop()
    while (await message_with(reader, "trouble"))["trouble"] != "cannot connect":
        pass
    # The same one with a step that was missed, then another one.
    device.inspector.step(2)
    await device.start()
    message = await message_with(reader, "steps")
    assert [step["number"] for step in message["steps"]] == [2]
    await device.stop()
    device.inspector = Inspector()
    device.inspector.instance_id = "two"
    device.inspector.step(1)
    await device.start()
    message = await message_with(reader, "steps")
    assert [step["number"] for step in message["steps"]] == [1]


async def test_losses_on_the_way_are_told(device: Device, relays: Relays) -> None:
    _, reader = relays.join(None)
    await eventually(lambda: len(device.inspector.streams) == 1)
    device.inspector.send(inspector_pb2.WatchStepsResponse(lost_steps=7))
    assert (await message_with(reader, "lost"))["lost"] == 7


async def test_a_slow_browser_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "MAX_UNREAD_BYTES", 10)
    reader = Reader()
    reader.offer(["1111", "2222", "3333"])
    reader.offer(["4444"])
    message = await news(reader)
    assert message == {"lost": 2, "steps": [3333, 4444]}
    reader.offer(["5555"])
    assert await news(reader) == {"steps": [5555]}


async def test_browsers_are_counted(relays: Relays) -> None:
    for _ in range(MAX_READERS):
        relays.join(None)
    with pytest.raises(TooManyReaders):
        relays.join(None)
    relays.end("enough")


async def test_the_end_is_the_last_message(relays: Relays) -> None:
    name, reader = relays.join(None)
    relays.end("over")
    assert (await news(reader))["end"] == "over"
    assert await reader.take() is None
    relays.leave(name, reader)


# -- HTTP ------------------------------------------------------------------


@pytest_asyncio.fixture
async def http(relays: Relays) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=list(inspect_routes(relays)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


@pytest.mark.parametrize("path", sorted(FILES))
async def test_files(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 200
    assert answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_what_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get("/inspect/events?device=third")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no device service 'third'"
    headers = {"sec-fetch-site": "cross-site"}
    answer = await http.get("/inspect/events", headers=headers)
    assert answer.status_code == 403
