"""A balancer of connections, as a Kubernetes Service is one: it knows no HTTP.

A connection stays with its backend to its end. A backend gets no new ones when its
`/ready` has said no twice, a second apart, or cannot be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence

import httpx

CHECK_SECONDS = 1.0
FALL = 2
CHUNK = 64 * 1024


class Balancer:
    """Forwards connections to the backends that are ready, in turn."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._failures = dict.fromkeys(ports, FALL)
        self._turn = itertools.count()
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen on a free port, which `port` says then."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        checks = asyncio.create_task(self._check_forever())
        try:
            yield
        finally:
            server.close()
            tasks = {checks, *self._connections}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def is_up(self, port: int) -> bool:
        """Whether new connections may go there."""
        return self._failures[port] < FALL

    async def _check_forever(self) -> None:
        async with httpx.AsyncClient(timeout=CHECK_SECONDS) as http:
            while True:
                for port in self._failures:
                    await self._check(http, port)
                await asyncio.sleep(CHECK_SECONDS)

    async def _check(self, http: httpx.AsyncClient, port: int) -> None:
        try:
            answer = await http.get(f"http://127.0.0.1:{port}/ready")
            failed = answer.status_code != 200
        except httpx.TransportError:
            failed = True
        self._failures[port] = self._failures[port] + 1 if failed else 0

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            return  # streams of asyncio would print a traceback
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up = [port for port in self._failures if self.is_up(port)]
        if not up:
            return
        port = up[next(self._turn) % len(up)]
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", port)
            sides = {
                asyncio.create_task(_copy(reader, forth)),
                asyncio.create_task(_copy(back, writer)),
            }
            try:
                await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for side in sides:
                    side.cancel()
                forth.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
