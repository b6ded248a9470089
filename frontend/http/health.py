"""Can this frontend serve, and if not, why: /live, /ready and /health."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from frontend.http.errors import HttpError
from frontend.http.keys import has_key
from ttserve.tokens import Tokens


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
        "reasons": [{"reason": word, "detail": detail} for word, detail in reasons],
        **readiness.details(),
    }
    if not reasons:
        return JSONResponse({"status": "ready"} | report)
    error = HttpError(503, "; ".join(detail for _, detail in reasons))
    return _unavailable(report, error)


def ready_in_short(readiness: Readiness) -> Response:
    """The same status for those without a key: what stands in the way, in a word.

    Sentences and details name device services, models and addresses.
    """
    words = list(dict.fromkeys(word for word, _ in readiness.reasons()))
    if not words:
        return JSONResponse({"status": "ready"})
    error = HttpError(503, f"not ready: {', '.join(words)}")
    return _unavailable({"reasons": [{"reason": word} for word in words]}, error)


def health_routes(readiness: Readiness, keys: Tokens) -> Iterable[Route]:
    """The three endpoints; /health is /ready under the name that vLLM gives it."""

    async def get_live(request: Request) -> Response:
        return live()

    async def get_ready(request: Request) -> Response:
        answer = ready if has_key(request.scope, keys) else ready_in_short
        return answer(readiness)

    return (
        Route("/live", get_live, methods=["GET"]),
        Route("/ready", get_ready, methods=["GET"]),
        Route("/health", get_ready, methods=["GET"]),
    )


def _unavailable(report: dict[str, Any], error: HttpError) -> Response:
    """A 503 that is a report and an error in OpenAI's envelope at once."""
    retry = error.response("").headers["Retry-After"]
    body = {"status": "unavailable"} | report | error.body("")
    return JSONResponse(body, error.status, {"Retry-After": retry})
