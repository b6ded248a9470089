"""API keys: everything but the health endpoints wants one, if any are set.

vLLM guards /v1 only and leaves, for example, /tokenize open.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http.errors import HttpError, route_path
from frontend.http.keys import has_key
from frontend.inspect.page import FILES
from ttserve.tokens import Tokens

OPEN_PATHS = frozenset({"/live", "/ready", "/health"}) | FILES.keys()
"""Compared with the path that routes are found by: no other spelling is open."""

POLICY_VIOLATION = 1008


class ApiKeys:
    """Lets requests with a key through, and those for `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Tokens) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or has_key(scope, self._keys):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif (path := route_path(scope)) in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            await refuse(path, scope, receive, send)


async def refuse(path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 401."""
    response = HttpError(401, "a valid API key is required").response(path)
    response.headers["WWW-Authenticate"] = "Bearer"
    await response(scope, receive, send)
