"""The outermost wrapper of a request: its id, and those that are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.errors import HttpError, route_path
from frontend.http.notes import begin_notes
from frontend.inspect.page import EVENTS_PATH
from ttserve.trace_context import trace_headers

REQUEST_ID = "x-request-id"
_USABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
UNCOUNTED = frozenset({"/live", "/ready", "/health", "/metrics", EVENTS_PATH})


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request between its first byte and the end of its answer."""

    task: asyncio.Task[Any] | None
    answered: bool = False
    ended_by: HttpError | None = None


class InFlight:
    """The requests that a drain has to wait for. Event loop only."""

    def __init__(self) -> None:
        self.closing = False
        self._open: set[OpenRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> OpenRequest:
        """A request has come, on the current task."""
        request = OpenRequest(asyncio.current_task())
        self._open.add(request)
        self._idle.clear()
        return request

    def end(self, request: OpenRequest) -> None:
        """It has been answered, or its client has gone."""
        self._open.discard(request)
        if not self._open:
            self._idle.set()

    async def drained(self, seconds: float) -> None:
        """Wait until nothing is in flight, but no longer than so many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)

    def close_connections(self) -> None:
        """From now on every answer says that its connection ends with it."""
        self.closing = True

    def end_unanswered(self, error: HttpError) -> None:
        """Answer with `error` where no answer has begun.

        Such a request may still be sending its body, or wait for a thread.
        """
        for request in self._open:
            if not request.answered and request.task is not None:
                request.ended_by = error
                request.task.cancel()


class RequestContext:
    """Gives a request its id, returns the id, keeps account of the request.

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
        headers = Headers(scope=scope)
        given = headers.get(REQUEST_ID)
        usable = given is not None and _USABLE_ID.fullmatch(given) is not None
        request_id = given if given and usable else uuid.uuid4().hex
        if given is not None and not usable:
            scope = {**scope, "headers": _without_request_id(scope)}
        begin_notes(request_id, trace_headers(headers.items()))

        counted = None

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                if self._in_flight.closing:
                    headers["connection"] = "close"
                if counted is not None:
                    counted.answered = True
            await send(message)

        if route_path(scope) in UNCOUNTED:
            await self._app(scope, receive, send_with_id)
            return
        counted = self._in_flight.begin()
        try:
            await self._app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            if counted.ended_by is None:
                raise
            response = counted.ended_by.response(route_path(scope))
            await response(scope, receive, send_with_id)
        finally:
            self._in_flight.end(counted)


def _without_request_id(scope: Scope) -> list[tuple[bytes, bytes]]:
    name = REQUEST_ID.encode()
    return [pair for pair in scope["headers"] if pair[0].lower() != name]
