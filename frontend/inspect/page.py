"""The routes of the page: its files, and the events that it draws.

The files say nothing about this server, so they need no key: a browser cannot
send one with an address that a person types. The events do; see `ApiKeys`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from frontend.http.errors import HttpError
from frontend.inspect.reader import Reader
from frontend.inspect.relay import Relays, TooManyReaders, UnknownDevice

MESSAGE_SECONDS = 0.1
"""Between two messages to one browser."""

EVENTS_PATH = "/inspect/events"
FILES = {
    "/inspect": ("page.html", "text/html"),
    "/inspect/page.css": ("page.css", "text/css"),
    "/inspect/page.js": ("page.js", "text/javascript"),
    "/inspect/events.js": ("events.js", "text/javascript"),
    "/inspect/model.js": ("model.js", "text/javascript"),
    "/inspect/tables.js": ("tables.js", "text/javascript"),
    "/inspect/timeline.js": ("timeline.js", "text/javascript"),
    "/inspect/icon.svg": ("icon.svg", "image/svg+xml"),
}

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def inspect_routes(relays: Relays) -> Iterable[Route]:
    """The page, its files and its events."""
    for path, (name, media_type) in FILES.items():
        yield _file_route(path, name, media_type)

    async def get_events(request: Request) -> Response:
        if request.method == "HEAD":  # a stream without an end has no HEAD either
            return Response(media_type="text/event-stream")
        return _events(relays, request)

    yield Route(EVENTS_PATH, get_events, methods=["GET"], include_in_schema=False)


def _file_route(path: str, name: str, media_type: str) -> Route:
    body = files("frontend.inspect").joinpath("static", name).read_bytes()

    async def get_file(request: Request) -> Response:
        return Response(body, headers=_HEADERS, media_type=media_type)

    return Route(path, get_file, methods=["GET"], include_in_schema=False)


def _events(relays: Relays, request: Request) -> Response:
    # Browsers say so themselves: CORS would let any page of the web read along.
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        error = HttpError(403, "events are for this server's own page")
        return error.response(EVENTS_PATH)
    device = request.query_params.get("device")
    try:
        name, reader = relays.join(device)
    except UnknownDevice:
        error = HttpError(404, f"there is no device service {device!r}", "device")
        return error.response(EVENTS_PATH)
    except TooManyReaders:
        return HttpError(503, "too many look already").response(EVENTS_PATH)
    return _EventStream(relays, name, reader)


class _EventStream(StreamingResponse):
    """Server-sent events until the browser leaves or the reader ends."""

    def __init__(self, relays: Relays, name: str, reader: Reader) -> None:
        super().__init__(
            _messages(reader),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._relays = relays
        self._name = name
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._relays.leave(self._name, self._reader)


async def _messages(reader: Reader) -> AsyncIterator[bytes]:
    while (message := await reader.take()) is not None:
        yield message
        await asyncio.sleep(MESSAGE_SECONDS)
