"""API keys: everything but the health endpoints wants one, if any are set.

vLLM guards /v1 only and leaves, for example, /tokenize open.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.errors import HttpError, route_path
from frontend.inspect.page import FILES

OPEN_PATHS = frozenset({"/live", "/ready", "/health"}) | FILES.keys()


class ApiKeys:
    """Takes `Authorization: Bearer KEY`, and Anthropic's `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no route speaks WebSocket
            await self._app(scope, receive, send)
            return
        path = route_path(scope)
        if path in OPEN_PATHS or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        response = HttpError(401, "a valid API key is required").response(path)
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        if not self._digests:
            return True
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = (
            token.strip()
            if scheme.lower() == "bearer"
            else headers.get("x-api-key", "")
        )
        given = _digest(key)
        # Every key is compared, so that the time says nothing.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
