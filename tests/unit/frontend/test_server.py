"""Whose connections a socket's are, while a frontend starts and ends."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from frontend.config import HttpConfig, read_command_line
from frontend.http.server import bind_port, serving, serving_later


@pytest.fixture(scope="module")
def http() -> HttpConfig:
    """As the command line's defaults are."""
    return read_command_line(("--device-service", "x:1"), {}).http


async def say_who(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.app.state.who)


def named(who: str) -> Starlette:
    """An app that says who answers."""
    app = Starlette(routes=[Route("/", say_who)])
    app.state.who = who
    return app


async def test_connections_wait_until_they_are_due(http: HttpConfig) -> None:
    due = asyncio.Event()
    listener = bind_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        serving_later(named("late"), listener, http, due.wait),
        httpx.AsyncClient(timeout=20) as client,
    ):
        asking = asyncio.create_task(client.get(url))
        done, _ = await asyncio.wait({asking}, timeout=0.3)
        assert not done
        due.set()
        assert (await asking).text == "late"


async def test_an_end_before_they_are_due(http: HttpConfig) -> None:
    async with (
        asyncio.timeout(5),
        serving_later(
            named("never"), bind_port("127.0.0.1", 0), http, asyncio.Event().wait
        ) as server,
    ):
        server.stop_accepting()


async def test_a_shared_socket_is_left_to_the_others(http: HttpConfig) -> None:
    first = bind_port("127.0.0.1", 0)
    second = first.dup()
    url = f"http://127.0.0.1:{first.getsockname()[1]}"
    async with (
        serving(named("stays"), first, http),
        serving(named("leaves"), second, http) as leaving,
        httpx.AsyncClient(
            timeout=20, limits=httpx.Limits(max_keepalive_connections=0)
        ) as client,
    ):
        leaving.stop_accepting()
        answers = [(await client.get(url)).text for _ in range(20)]
        assert set(answers) == {"stays"}
        assert not leaving.has_connections
