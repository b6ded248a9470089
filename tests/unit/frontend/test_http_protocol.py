"""Bounds of the HTTP server: over a real socket, below any framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvicorn

from frontend.http.parser import StayingParser
from frontend.http.protocol import MAX_HEAD_BYTES, bounded_http

MAX_CONNECTIONS = 3
SMALL = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"
BODY_BYTES = 4 * MAX_HEAD_BYTES


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says how large the body is."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    headers = [(b"content-length", str(len(str(size))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": str(size).encode()})


class Held:
    """Begins each answer at once, and ends it when told to, or when its client goes."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        self.begun.release()
        leaving = asyncio.create_task(receive())
        going_on = asyncio.create_task(self.go_on.wait())
        await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.left.set()
        leaving.cancel()
        going_on.cancel()
        await send({"type": "http.response.body", "body": b"b"})


@contextlib.asynccontextmanager
async def serving(served: Any = app, **bounds: float) -> AsyncIterator[int]:
    """uvicorn with the protocol; its port."""
    config = uvicorn.Config(
        served,
        http=bounded_http(MAX_CONNECTIONS, **bounds),
        port=0,
        lifespan="off",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    yield server.servers[0].sockets[0].getsockname()[1]
    await server.shutdown()


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    async with serving() as number:
        yield number


class Client:
    """One connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        head = (
            await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)
        ).decode()
        (length,) = (
            int(line.partition(":")[2])
            for line in head.lower().splitlines()
            if line.startswith("content-length:")
        )
        return int(head.split()[1]), await self._reader.readexactly(length)

    async def closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(self._reader.read(1), 10) == b""
        return True


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def envelope(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def test_requests_follow_each_other_and_bodies_are_no_heads(port: int) -> None:
    head = f"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    async with connected(port) as client:
        for _ in range(2):
            await client.send(head.encode() + b"b" * BODY_BYTES)
            assert await client.answer() == (200, str(BODY_BYTES).encode())
            await client.send(SMALL + SMALL)
            assert (await client.answer())[0] == 200
            assert (await client.answer())[0] == 200


OFFERS = {
    # What Java's HttpClient and `curl --http2` send.
    "http2": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\n",
}
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n2\r\nbb\r\n3\r\nbbb\r\n0\r\n\r\n"
COUNTED = b"Content-Length: 5\r\n\r\nbbbbb"


@pytest.mark.parametrize("body", [COUNTED, CHUNKED], ids=["counted", "chunked"])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
async def test_an_offer_of_another_protocol_is_ignored(
    port: int, offer: bytes, body: bytes
) -> None:
    request = b"POST /x HTTP/1.1\r\nHost: h\r\n" + offer + body
    async with connected(port) as client:
        await client.send(request + request + SMALL)
        for size in (b"5", b"5", b"0"):
            assert await client.answer() == (200, size)


@pytest.mark.parametrize("body", [COUNTED, CHUNKED], ids=["counted", "chunked"])
def test_an_offer_is_ignored_wherever_packets_end(body: bytes) -> None:
    request = b"POST /x HTTP/1.1\r\nHost: h\r\n" + OFFERS["http2"] + body
    for end in range(1, len(request)):
        calls = Calls()
        calls.parser.feed_data(request[:end])
        calls.parser.feed_data(request[end:])
        assert (calls.heads, calls.body, calls.ends) == (1, b"bbbbb", 1)
        assert b"upgrade" not in dict(calls.headers)


class Calls:
    """What a parser says of one message that is not skipped."""

    def __init__(self) -> None:
        self.parser = StayingParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self.url = self.body = b""
        self.heads = self.ends = 0

    def on_message_begin(self) -> None:
        self.headers, self.url = [], b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.heads += not self.parser.skips_head(self.url, self.headers)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ends += not self.parser.skipping


async def test_a_connection_is_closed_after_an_offer_if_asked_for(port: int) -> None:
    offer = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
    async with connected(port) as client:
        await client.send(b"POST /x HTTP/1.1\r\nHost: h\r\n" + offer + COUNTED)
        assert await client.answer() == (200, b"5")
        assert await client.closed()


async def test_connect_is_an_ordinary_method(port: int) -> None:
    async with connected(port) as client:
        await client.send(b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer())[0] == 400


@pytest.mark.parametrize(
    "head",
    [
        SMALL[:-2] + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        SMALL[:-2] + b"X: y\r\n" * (MAX_HEAD_BYTES // 2) + b"\r\n",
        b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        # Never complete.
        SMALL[:-2] + b"X: " + b"a" * (MAX_HEAD_BYTES + 1),
    ],
    ids=["header", "headers", "path", "unending"],
)
async def test_a_head_that_is_too_large_is_431(port: int, head: bytes) -> None:
    async with connected(port) as client:
        await client.send(head)
        status, body = await client.answer()
        assert (status, envelope(body)["code"]) == (431, 431)
        assert await client.closed()


@pytest.mark.parametrize(
    "endless", [b"2\r\nbb\r\n0\r\nX: ", b"2;x="], ids=["trailer", "chunk_extension"]
)
async def test_what_is_no_body_is_bounded_too(port: int, endless: bytes) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with connected(port) as client:
        # What is read at once is counted from the next time on.
        await client.send(head + endless + b"a" * BODY_BYTES * 3)
        status, body = await client.answer()
        assert (status, envelope(body)["code"]) == (431, 431)
        assert await client.closed()


async def test_what_is_no_http_is_400(port: int) -> None:
    async with connected(port) as client:
        await client.send(b"\x16\x03\x01 what TLS begins with\r\n\r\n")
        status, body = await client.answer()
        assert (status, envelope(body)["code"]) == (400, 400)
        assert await client.closed()


@pytest.mark.parametrize("begun", [b"", SMALL[:9]])
async def test_a_head_that_does_not_come_is_408(begun: bytes) -> None:
    async with serving(head_seconds=0.2) as port, connected(port) as client:
        await client.send(begun)
        status, body = await client.answer()
        assert (status, envelope(body)["code"]) == (408, 408)
        assert await client.closed()


async def test_one_connection_too_many_is_503(port: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            client = await stack.enter_async_context(connected(port))
            await client.send(SMALL)
            assert (await client.answer())[0] == 200
        refused = await stack.enter_async_context(connected(port))
        status, body = await refused.answer()
        assert (status, envelope(body)["code"]) == (503, 503)
        assert await refused.closed()
        await client.send(SMALL)
        assert (await client.answer())[0] == 200


async def test_who_leaves_with_requests_in_the_queue_ends_the_one_that_runs() -> None:
    held = Held()
    async with serving(held) as port:
        async with connected(port) as client:
            await client.send(SMALL * 3)
            await asyncio.wait_for(held.begun.acquire(), 10)
        await asyncio.wait_for(held.left.wait(), 10)
    assert held.begun.locked()  # and begins no other


@pytest.mark.parametrize("whole", [1, 2])
@pytest.mark.parametrize(
    "bad",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
    ],
    ids=["no_http", "bad_chunk"],
)
async def test_an_error_does_not_break_into_an_answer(bad: bytes, whole: int) -> None:
    held = Held()
    async with serving(held) as port, connected(port) as client:
        await client.send(SMALL * whole + bad)  # one packet
        await asyncio.wait_for(held.begun.acquire(), 10)
        held.go_on.set()
        for _ in range(whole):
            assert await client.answer() == (200, b"ab")
        assert await client.closed()


async def test_a_head_that_is_late_does_not_break_into_an_answer() -> None:
    held = Held()
    async with serving(held, head_seconds=0.2) as port, connected(port) as client:
        await client.send(SMALL + SMALL[:9])
        await asyncio.wait_for(held.begun.acquire(), 10)
        await asyncio.sleep(0.25)
        held.go_on.set()
        assert await client.answer() == (200, b"ab")
        assert await client.closed()
