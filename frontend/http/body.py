"""Reads a request's body, within bounds, and checks it before vLLM sees it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.errors import BadField, HttpError, route_path

JSON = "application/json"

BODY_SECONDS = 30.0
"""How long a body may stand still on its way."""

_BODY_IS_UNREAD = (408, 413)

Check = Callable[[dict[str, Any]], None]
"""Raises BadField."""


class BodyTooLarge(Exception):
    """The client sent more than is read."""


class BodyTooSlow(Exception):
    """The client sends its body no further."""


class ClientGone(Exception):
    """The client closed the connection before its body was complete."""


class JsonBody:
    """Only JSON objects of bounded size pass, and only if their check does.

    The body is read here once and replayed. What vLLM would answer to a
    malformed one is not always an error of the client, or not a short one.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        checks: dict[str, Check],
        patience: float = BODY_SECONDS,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._checks = checks
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        try:
            error, body = await self._read(scope, receive, path)
        except ClientGone:
            return
        if error is not None:
            answer = error.response(path)
            if error.status in _BODY_IS_UNREAD:
                # What else comes is no request.
                answer.headers["Connection"] = "close"
            await answer(scope, receive, send)
            return
        await self._app(scope, _replaying(body, receive), send)

    async def _read(
        self, scope: Scope, receive: Receive, path: str
    ) -> tuple[HttpError | None, bytes]:
        headers = Headers(scope=scope)
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if path in self._checks and media_type != JSON:
            return HttpError(415, f"Content-Type must be {JSON}"), b""
        too_large = HttpError(413, f"the body has more than {self._max_bytes} bytes")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_bytes:
            return too_large, b""
        try:
            body = await self._collect(receive)
        except BodyTooLarge:
            return too_large, b""
        except BodyTooSlow:
            late = f"nothing of the body came for {self._patience:g} s"
            return HttpError(408, late), b""
        return self._check(path, body, headers.get("content-encoding", ""))

    async def _collect(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlow from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > self._max_bytes:
                raise BodyTooLarge
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    def _check(
        self, path: str, body: bytes, encoding: str
    ) -> tuple[HttpError | None, bytes]:
        """What is wrong with the body, and the body as vLLM shall see it."""
        check = self._checks.get(path)
        if check is None:
            return None, body
        try:
            body = _in_utf8(body)
            fields = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _not_json(body, encoding, error), body
        if not isinstance(fields, dict):
            return HttpError(400, "the body must be a JSON object"), body
        try:
            check(fields)
        except BadField as bad:
            return HttpError(400, bad.message, param=bad.field), body
        return None, body


def _in_utf8(body: bytes) -> bytes:
    """Whichever of Unicode's encodings it came in, with a byte order mark or without.

    vLLM reads them all.
    """
    encoding = json.detect_encoding(body)
    return body if encoding == "utf-8" else body.decode(encoding).encode()


def _not_json(body: bytes, encoding: str, error: Exception) -> HttpError:
    """Name the field, where it is only a number that JSON does not have.

    `encoding` is what the client says; nobody here unpacks bodies.
    """
    if encoding.lower() not in ("", "identity"):
        return HttpError(
            415, f"Content-Encoding {encoding} is not supported: send plain JSON"
        )
    try:
        lenient = json.loads(body)
    except (ValueError, RecursionError):
        lenient = None
    if isinstance(lenient, dict):
        for name, value in lenient.items():
            if isinstance(value, float) and not math.isfinite(value):
                return HttpError(400, f"{name} must be a finite number", param=name)
    reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
    return HttpError(400, f"the body is not valid JSON: {reason}")


def _replaying(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever the connection says."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay
