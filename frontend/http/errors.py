"""Error answers in OpenAI's envelope, and their parts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from ttserve.errors import TTServeError

MAX_MESSAGE = 1000
MESSAGES_API = "/v1/messages"
"""Anthropic's API wants `"type": "error"` around the same envelope."""

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    500: "InternalServerError",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_RETRY_STATUSES = (429, 503)
_DEFAULT_RETRY_SECONDS = 1.0


class BadField(Exception):
    """A field that cannot be served, and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class HttpError:
    """What goes wrong for a client, with everything it is told."""

    status: int
    message: str
    param: str | None = None
    type: str | None = None
    retry_after: float | None = None

    def body(self, path: str) -> dict[str, Any]:
        """The envelope for an error on `path`."""
        error = {
            "message": shorten(self.message),
            "type": self.type or error_type(self.status),
            "param": self.param,
            "code": self.status,
        }
        if not path.startswith(MESSAGES_API):
            return {"error": error}
        error["type"] = _ANTHROPIC_TYPES.get(self.status, "api_error")
        return {"type": "error", "error": error}

    def response(self, path: str) -> Response:
        """The whole HTTP answer."""
        return Response(
            json.dumps(self.body(path), ensure_ascii=False),
            status_code=self.status,
            headers=retry_after(self.status, self.retry_after),
            media_type="application/json",
        )


def from_failure(failure: TTServeError, param: str | None = None) -> HttpError:
    """The HTTP side of a failure of the service."""
    return HttpError(
        status=failure.consequence.http_status,
        message=failure.message,
        param=param,
        retry_after=failure.retry_after,
    )


def error_type(status: int) -> str:
    """vLLM's name for a kind of error, or the name of the status."""
    return _TYPES.get(status) or HTTPStatus(status).phrase


def retry_after(status: int, seconds: float | None) -> dict[str, str]:
    """The header that says when to come again, where that can help."""
    if status not in _RETRY_STATUSES:
        return {}
    wait = _DEFAULT_RETRY_SECONDS if seconds is None else seconds
    return {"Retry-After": str(max(1, math.ceil(wait)))}


def shorten(message: str) -> str:
    """Keep an echo of the request from filling the answer."""
    if len(message) <= MAX_MESSAGE:
        return message
    return message[: MAX_MESSAGE - 3] + "..."


def route_path(scope: Scope) -> str:
    """The path as routes know it, without a proxy's prefix."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(root + "/") else path
