"""A proxy of TCP connections that can stop forwarding without closing anything."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from tests.chaos.streams import HOST

T = TypeVar("T")
CHUNK = 64 * 1024


class Proxy:
    """Forwards a port of its own to another, in a thread of its own.

    While it is frozen, connections that it has stand still: nothing is read,
    nothing is closed. They stay so when new ones are served again, as after a
    firewall has forgotten them.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._pairs: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.accepting = True
        self.port = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Listen on a free port, which `port` says then."""
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        server = self._call(self._listen())
        try:
            yield self
        finally:
            server.close()
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    def freeze(self, *, accepting: bool) -> None:
        """Let what is connected stand still for ever; new ones as `accepting` says."""
        self._call(self._freeze(accepting=accepting))

    def accept(self) -> None:
        """Forward new connections again."""
        self.accepting = True

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _freeze(self, *, accepting: bool) -> None:
        self.accepting = accepting
        for pair in self._pairs:
            pair.cancel()
        await asyncio.gather(*self._pairs, return_exceptions=True)

    async def _close(self) -> None:
        await self._freeze(accepting=False)
        for writer in self._writers:
            writer.transport.abort()
        closed = (writer.wait_closed() for writer in self._writers)
        await asyncio.gather(*closed, return_exceptions=True)

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._writers.add(writer)
        if not self.accepting:
            return  # connected, and never answered
        back, forth = await asyncio.open_connection(HOST, self._target_port)
        self._writers.add(forth)
        pair = asyncio.create_task(self._forward((reader, forth), (back, writer)))
        self._pairs.add(pair)
        pair.add_done_callback(self._pairs.discard)

    async def _forward(
        self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        copies = [asyncio.create_task(_copy(*way)) for way in ways]
        try:
            # Frozen: what nobody reads fills the buffers of the one who sends.
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
        for _, writer in ways:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
