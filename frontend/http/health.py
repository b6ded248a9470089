"""Can this frontend serve, and if not, why: /live, /ready and /health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from frontend.http.errors import HttpError


class Readiness(Protocol):
    """Who knows."""

    def reasons(self) -> list[tuple[str, str]]:
        """Why no request can be served: a word and a sentence each; [] if one can."""

    def details(self) -> dict[str, Any]:
        """What else is worth knowing, for people."""


def live() -> Response:
    """The process runs and its event loop turns."""
    return JSONResponse({"status": "alive"})


def ready(readiness: Readiness) -> Response:
    """200 if a request can be served now; 503 with the reasons if not."""
    reasons = readiness.reasons()
    report = {
        "status": "unavailable" if reasons else "ready",
        "reasons": [{"reason": word, "detail": detail} for word, detail in reasons],
        **readiness.details(),
    }
    if not reasons:
        return JSONResponse(report)
    error = HttpError(503, "; ".join(detail for _, detail in reasons))
    response = error.response("")
    return JSONResponse(
        report | error.body(""), 503, {"Retry-After": response.headers["Retry-After"]}
    )


def health_routes(readiness: Readiness) -> Iterable[Route]:
    """The three endpoints; /health is /ready under the name that vLLM gives it."""

    async def get_live(request: Request) -> Response:
        return live()

    async def get_ready(request: Request) -> Response:
        return ready(readiness)

    return (
        Route("/live", get_live, methods=["GET"]),
        Route("/ready", get_ready, methods=["GET"]),
        Route("/health", get_ready, methods=["GET"]),
    )
