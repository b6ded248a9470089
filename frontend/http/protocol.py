"""uvicorn's HTTP/1.1 over httptools, within bounds that httptools does not have."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from frontend.http.errors import HttpError, retry_after
from frontend.http.parser import StayingParser

MAX_HEAD_BYTES = 64 << 10
"""Request line and headers together."""

HEAD_TOO_LARGE = f"the headers have more than {MAX_HEAD_BYTES} bytes"
HEAD_SECONDS = 30.0
"""How long a head may take to arrive, from the connection's beginning or from its
own first byte.
"""


LINGER_SECONDS = 1.0


class BoundedHttp(HttpToolsProtocol):
    """Ends connections whose head is too large or too slow, and those too many."""

    parser: StayingParser  # type: ignore[assignment]  # speaks as httptools' does
    max_connections = 0
    head_seconds = HEAD_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.parser = StayingParser(self)
        self._received = 0  # bytes since the parser said anything, or began a head
        self._head_bytes = 0  # of the message that is being parsed
        self._head_is_due: asyncio.TimerHandle | None = None
        self._has_ended = False
        self._answering: RequestResponseCycle | None = None  # others are queued

    def connection_made(  # type: ignore[override]  # as uvicorn's
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._end(503, f"more than {self.max_connections} connections are open")
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn tells the request that came last, which may be queued.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._received += len(data)
        super().data_received(data)
        # httptools collects a header that is not complete, a trailer too: it does not
        # say how much it has.
        if self._received > MAX_HEAD_BYTES:
            self._end(431, HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        if self._head_is_due is None:
            self._await_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.skips_head(self.url, self.headers):
            return
        self._forget_head()
        self._received = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._received = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._received = 0
        if not self.parser.skipping:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP, and what one of the callbacks above has refused."""
        if self._head_bytes > MAX_HEAD_BYTES:
            self._end(431, HEAD_TOO_LARGE)
        else:
            self._end(400, msg)

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError(HEAD_TOO_LARGE)  # ends the parsing

    def _await_head(self) -> None:
        self._received = 0
        self._head_is_due = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_is_due is not None:
            self._head_is_due.cancel()
            self._head_is_due = None

    def _head_is_late(self) -> None:
        self._end(408, f"no request within {self.head_seconds:g} s")

    def _start_asgi_task(
        self, cycle: RequestResponseCycle, app: ASGI3Application
    ) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _end(self, status: int, message: str) -> None:
        """Read no further requests, and close; say why, unless answers are due."""
        self._forget_head()
        self._has_ended = True
        if self._owes_answers():
            self._close_after_answers()
        else:
            self._close_with_error(status, message)

    def _owes_answers(self) -> bool:
        """Whether a request is whole, or answered already, but not to the end."""
        cycle = self._answering
        if cycle is None or cycle.response_complete:
            return False
        return cycle.response_started or not cycle.more_body

    def _close_after_answers(self) -> None:
        """An error sent now would be read as a part of an answer."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()  # what cannot be read is its body
        last = self.pipeline[0][0] if self.pipeline else self._answering
        assert last is not None
        last.keep_alive = False

    def _close_with_error(self, status: int, message: str) -> None:
        """Say why, in OpenAI's envelope, and close.

        What is still on its way is read and dropped for a moment: to close with
        data unread takes the answer from the client.
        """
        self.connections.discard(self)
        body = json.dumps(HttpError(status, message).body("")).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **retry_after(status, None),
        }
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )
        self.transport.write(head.encode() + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


def bounded_http(
    max_connections: int, head_seconds: float = HEAD_SECONDS
) -> type[BoundedHttp]:
    """The protocol with its bounds, as uvicorn wants it: a class."""
    bounds = {"max_connections": max_connections, "head_seconds": head_seconds}
    return type("BoundedHttp", (BoundedHttp,), bounds)
