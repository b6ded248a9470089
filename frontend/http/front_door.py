"""What answers on the port: first almost nothing, later vLLM's app."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from frontend.http import health
from frontend.http.auth import refuse
from frontend.http.errors import HttpError, route_path
from frontend.http.health import Readiness
from frontend.http.keys import has_key
from ttserve.tokens import Tokens


class FrontDoor:
    """The one ASGI app that the HTTP server knows.

    Before `open` it answers the health endpoints itself and everything else
    with 503, or 401 without a key.
    """

    def __init__(self, readiness: Readiness, keys: Tokens) -> None:
        self._readiness = readiness
        self._keys = keys
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """From now on everything goes to `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or self._before_start
        await app(scope, receive, send)

    async def _before_start(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = route_path(scope)
        known = has_key(scope, self._keys)
        match path:
            case "/live":
                response = health.live()
            case "/ready" | "/health":
                answer = health.ready if known else health.ready_in_short
                response = answer(self._readiness)
            case _ if not known:
                await refuse(path, scope, receive, send)
                return
            case _:
                details = [detail for _, detail in self._readiness.reasons()]
                error = HttpError(503, "; ".join(details) or "starting")
                response = error.response(path)
        await response(scope, receive, send)
