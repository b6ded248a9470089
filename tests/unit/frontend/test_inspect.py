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
from frontend.inspect.relay import MAX_READERS, Relays, TooManyReaders, UnknownDevice
from tests.support.scripted_inspector import InspectedDevice, ScriptedInspector
from tests.support.waiting import eventually
from ttserve.v1 import inspector_pb2


@pytest_asyncio.fixture
async def device() -> AsyncIterator[InspectedDevice]:
    running = InspectedDevice()
    await running.start()
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def relays(device: InspectedDevice) -> AsyncIterator[Relays]:
    backoff = [
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.initial_reconnect_backoff_ms", 50),
    ]
    async with grpc.aio.insecure_channel(device.address, options=backoff) as channel:
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


async def test_two_browsers_share_a_stream(
    device: InspectedDevice, relays: Relays
) -> None:
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


async def test_return_of_a_device_service(
    device: InspectedDevice, relays: Relays
) -> None:
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
    device.inspector = ScriptedInspector("two")
    device.inspector.step(1)
    await device.start()
    message = await message_with(reader, "steps")
    assert [step["number"] for step in message["steps"]] == [1]


async def test_a_device_service_that_is_taken_off_the_list(
    device: InspectedDevice,
) -> None:
    channels = {
        name: grpc.aio.insecure_channel(device.address) for name in ("first", "second")
    }
    relays = Relays(lambda: channels)
    name, reader = relays.join("first")
    await message_with(reader, "state")
    second = channels.pop("second")
    assert (await message_with(reader, "devices"))["devices"] == ["first"]
    await channels.pop("first").close(None)
    end = (await message_with(reader, "end"))["end"]
    assert end == "this device service is not used any more"
    relays.leave(name, reader)
    with pytest.raises(UnknownDevice):
        relays.join("first")
    await second.close(None)


async def test_one_that_comes_back_is_seen_though_a_slow_browser_is_left_over(
    device: InspectedDevice,
) -> None:
    channels = {"first": grpc.aio.insecure_channel(device.address)}
    relays = Relays(lambda: channels)
    name, slow = relays.join("first")
    await message_with(slow, "state")
    await channels["first"].close(None)
    await message_with(slow, "end")
    channels["first"] = grpc.aio.insecure_channel(device.address)
    name, fresh = relays.join("first")
    device.inspector.step(1)
    message = await message_with(fresh, "steps")
    assert [step["number"] for step in message["steps"]] == [1]
    relays.leave(name, slow)
    relays.leave(name, fresh)
    await channels["first"].close(None)


async def test_losses_on_the_way_are_told(
    device: InspectedDevice, relays: Relays
) -> None:
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
    assert (await http.head("/inspect/events")).status_code == 200
    headers = {"sec-fetch-site": "cross-site"}
    answer = await http.get("/inspect/events", headers=headers)
    assert answer.status_code == 403
