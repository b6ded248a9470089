"""Streams whose errors are errors.

vLLM answers 200 before it has checked a streaming request, and says in the
stream what is wrong. Here the start of the answer is held until the first chunk
is known; if that is an error, the client gets the status that belongs to it.
After the first chunk an error can only be an event, and it has to be one.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.errors import (
    MESSAGES_API,
    HttpError,
    from_failure,
    route_path,
)
from frontend.http.notes import current_notes

logger = logging.getLogger(__name__)

RESPONSES_API = "/v1/responses"
_ERROR_PREFIXES = (b'data: {"error"', b"event: error\n")


class HeldStreams:
    """Holds the start of event streams until their first chunk."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        stream = _Stream(path, scope, receive, send)
        try:
            await self._app(scope, receive, stream.send)
        except Exception:
            if not stream.open:
                raise
            if current_notes().failure is None:
                logger.exception("%s failed in mid-stream", path)
            await stream.end_with_error()


class _Stream:
    """One answer on its way; anything but an event stream passes through."""

    def __init__(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        self._path = path
        self._scope = scope
        self._receive = receive
        self._send = send
        self._held: Message | None = None
        self._answered = False
        self._created: dict[str, Any] = {}
        self._events = 0
        self.open = False

    async def send(self, message: Message) -> None:
        if self._answered:  # what vLLM says after its error interests nobody
            return
        if message["type"] == "http.response.start":
            if is_event_stream(message):
                self._held = message
            else:
                await self._send(message)
            return
        if self._held is not None:
            error = self._first_error(message.get("body", b""))
            if error is not None:
                self._answered = True
                await error.response(self._path)(self._scope, self._receive, self._send)
                return
            await self._send(self._held)
            self._held = None
            self.open = True
        if self.open:
            message = self._look_at(message)
        await self._send(message)

    async def end_with_error(self) -> None:
        """Finish a stream that broke off."""
        failure = current_notes().failure
        error = from_failure(failure) if failure else HttpError(500, "internal error")
        self._answered = True
        self.open = False
        event = self._error_event(error)
        await self._send({"type": "http.response.body", "body": event})

    def _first_error(self, chunk: bytes) -> HttpError | None:
        if not chunk.startswith(_ERROR_PREFIXES):
            return None
        failure = current_notes().failure
        said = _error_in(chunk)
        if failure is not None:
            return from_failure(failure, said.get("param"))
        return HttpError(
            status=int(said.get("code") or 500),
            message=str(said.get("message", "")),
            param=said.get("param"),
            type=said.get("type"),
        )

    def _look_at(self, message: Message) -> Message:
        """Mend what vLLM's two newer APIs say in mid-stream."""
        chunk: bytes = message.get("body", b"")
        if self._path == RESPONSES_API:
            self._events += chunk.startswith(b"event: ")
            if chunk.startswith(b"event: response.created\n"):
                self._created = _data_of(chunk).get("response", {})
        elif self._path.startswith(MESSAGES_API):
            failure = current_notes().failure
            if failure is not None and chunk.startswith(b"event: error\n"):
                event = self._error_event(from_failure(failure))
                return {**message, "body": event}
        return message

    def _error_event(self, error: HttpError) -> bytes:
        if self._path == RESPONSES_API:
            body: dict[str, Any] = {
                "type": "response.failed",
                "sequence_number": self._events,
                "response": self._created
                | {
                    "status": "failed",
                    "error": {"code": "server_error", "message": error.message},
                },
            }
            return _event("response.failed", body)
        if self._path.startswith(MESSAGES_API):
            return _event("error", error.body(self._path))
        data = json.dumps(error.body(self._path), ensure_ascii=False)
        return f"data: {data}\n\ndata: [DONE]\n\n".encode()


def is_event_stream(start: Message) -> bool:
    """Whether the answer that starts here is a stream of events."""
    kind = Headers(raw=start.get("headers", [])).get("content-type", "")
    return start["status"] == 200 and kind.startswith("text/event-stream")


def _event(name: str, body: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def _data_of(chunk: bytes) -> dict[str, Any]:
    """The JSON object after the first `data:` of a chunk; {} if there is none."""
    _, found, rest = chunk.partition(b"data: ")
    line = rest.partition(b"\n")[0] if found else b""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _error_in(chunk: bytes) -> dict[str, Any]:
    error = _data_of(chunk).get("error")
    return error if isinstance(error, dict) else {}
