"""The outermost wrapper of a request: its id, and the count of those in flight."""

from __future__ import annotations

import asyncio
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.errors import route_path
from frontend.http.notes import begin_notes
from frontend.inspect.page import EVENTS_PATH

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
UNCOUNTED = frozenset({"/live", "/ready", "/health", "/metrics", EVENTS_PATH})


class InFlight:
    """Counts the requests that a drain has to wait for."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return self._count

    def begin(self) -> None:
        """A request has come."""
        self._count += 1
        self._idle.clear()

    def end(self) -> None:
        """A request has been answered, or its client has gone."""
        self._count -= 1
        if self._count == 0:
            self._idle.set()

    async def drained(self) -> None:
        """Wait until nothing is in flight."""
        await self._idle.wait()


class RequestContext:
    """Gives a request its id, returns the id, counts the request.

    A client's own x-request-id is kept if it is printable and at most 128
    characters long; otherwise it is replaced, for vLLM as well.
    """

    def __init__(self, app: ASGIApp, in_flight: InFlight) -> None:
        self._app = app
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID)
        usable = given is not None and _USABLE_ID.fullmatch(given) is not None
        request_id = given if given and usable else uuid.uuid4().hex
        if given is not None and not usable:
            scope = {**scope, "headers": _without_request_id(scope)}
        begin_notes(request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        if route_path(scope) in UNCOUNTED:
            await self._app(scope, receive, send_with_id)
            return
        self._in_flight.begin()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            self._in_flight.end()


def _without_request_id(scope: Scope) -> list[tuple[bytes, bytes]]:
    name = REQUEST_ID.encode()
    return [pair for pair in scope["headers"] if pair[0].lower() != name]
