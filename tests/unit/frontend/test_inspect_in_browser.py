"""What the page does with several device services, lanes and strange names."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import uvicorn
from starlette.applications import Starlette

from frontend.http.server import HttpServer
from frontend.inspect.page import inspect_routes
from frontend.inspect.relay import Relays
from tests.support.browser import Browser, browsing
from tests.support.scripted_inspector import InspectedDevice
from tests.support.waiting import eventually
from ttserve.v1 import inspector_pb2

pytestmark = pytest.mark.timeout(180)

SECONDS = 60
STRANGE = "<img src=x onerror=alert(1)>"


def lanes(*names: str) -> list[inspector_pb2.LaneState]:
    """A lane of two rows per name; its first row is held under that name."""
    return [
        inspector_pb2.LaneState(
            lane=lane,
            total_rows=2,
            total_blocks=10,
            free_blocks=9 - lane,
            rows=[inspector_pb2.RowState(row=2 * lane, request_id=name)],
        )
        for lane, name in enumerate(names)
    ]


class Fleet:
    """Two device services and a server with their page."""

    def __init__(self) -> None:
        self.devices = {"a:1": InspectedDevice(), "b:2": InspectedDevice()}
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.relays = Relays(lambda: self.channels)
        self.url = ""


@pytest_asyncio.fixture
async def fleet() -> AsyncIterator[Fleet]:
    made = Fleet()
    async with contextlib.AsyncExitStack() as stack:
        for name, device in made.devices.items():
            await device.start()
            stack.push_async_callback(device.stop)
            made.channels[name] = grpc.aio.insecure_channel(device.address)
            stack.push_async_callback(made.channels[name].close, None)
        app = Starlette(routes=list(inspect_routes(made.relays)))
        listener = socket.create_server(("127.0.0.1", 0))
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}/inspect"
        server = HttpServer(uvicorn.Config(app, log_level="warning"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await eventually(lambda: server.started, SECONDS)
        yield made
        made.relays.end("over")
        server.should_exit = True
        await task


@pytest_asyncio.fixture
async def page(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Browser]:
    """The page with the first device service; the browser must not complain."""
    first, second = (device.inspector for device in fleet.devices.values())
    first.lanes = lanes("apple", STRANGE)
    first.step(1, "apple", STRANGE)
    second.lanes = lanes("pear")
    opening = browsing(tmp_path)
    browser = await asyncio.to_thread(opening.__enter__)
    await asyncio.to_thread(browser.open, fleet.url)
    await wait_for(browser, "#rows", 2)
    yield browser
    assert browser.complaints == []
    await asyncio.to_thread(opening.__exit__, None, None, None)


async def wait_for(page: Browser, table: str, rows: int) -> None:
    """Until the table has so many rows."""
    has_them = f"document.querySelector('{table} tbody')?.rows.length === {rows}"
    await asyncio.to_thread(page.wait_for, has_them, SECONDS)


async def requests_on(page: Browser) -> list[str]:
    return await asyncio.to_thread(page.texts, "#rows tbody td:nth-child(2)")


async def test_names_are_text(page: Browser) -> None:
    assert await requests_on(page) == ["apple", STRANGE]
    assert await asyncio.to_thread(page.evaluate, "document.images.length") == 0


async def test_a_lane(page: Browser) -> None:
    await asyncio.to_thread(page.enter, "#filter-lane", "1")
    await wait_for(page, "#rows", 1)
    assert await requests_on(page) == [STRANGE]
    await wait_for(page, "#lanes", 1)
    await wait_for(page, "#steps", 1)
    meter = "document.querySelector('#lanes meter').value"
    assert await asyncio.to_thread(page.evaluate, meter) == 2


async def test_losses_are_counted(page: Browser, fleet: Fleet) -> None:
    inspector = fleet.devices["a:1"].inspector
    await eventually(lambda: len(inspector.streams) == 1, SECONDS)
    for lost in (3, 4):
        inspector.send(inspector_pb2.WatchStepsResponse(lost_steps=lost))
    shown = "document.querySelector('#lost').textContent === '7'"
    await asyncio.to_thread(page.wait_for, shown, SECONDS)


async def test_the_devices_of_a_fleet(page: Browser, fleet: Fleet) -> None:
    assert await asyncio.to_thread(page.texts, "#device option") == ["a:1", "b:2"]
    await asyncio.to_thread(page.enter, "#device", "b:2")
    await wait_for(page, "#rows", 1)
    assert await requests_on(page) == ["pear"]
    # Nobody looks at the first any more.
    await eventually(lambda: not fleet.devices["a:1"].inspector.streams, SECONDS)
    await fleet.channels.pop("b:2").close(None)
    await wait_for(page, "#rows", 2)
    hidden = "document.querySelector('#device-choice').hidden"
    await asyncio.to_thread(page.wait_for, hidden, SECONDS)
    page.complaints[:] = [c for c in page.complaints if " 404 " not in c]
