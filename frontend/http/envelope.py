"""Brings every error answer into OpenAI's envelope, and keeps it short.

FastAPI says {"detail": ...}, a crash says "Internal Server Error" as text, and
vLLM's envelopes may echo much of the request. Answers below 400, and streams,
pass through untouched.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.errors import HttpError, from_failure, retry_after, route_path
from frontend.http.notes import current_notes

logger = logging.getLogger(__name__)

_PARAMETER_NOTE = re.compile(r" \(parameter=[a-z_]+(, value=|\)\Z)")
"""vLLM repeats at the end of a message what `param` says, and the client's value.

That value is not matched: of a long one that holds such notes, each would be read
to its end.
"""


_READS_THE_BODY = {
    ("fastapi.dependencies.utils", "request_body_to_args"),
    ("vllm.entrypoints.anthropic.serving", "to_chat_completion_request"),
    ("vllm.entrypoints.chat_utils", "parse_chat_messages_async"),
    ("vllm.entrypoints.openai.responses.utils", "construct_input_messages"),
    ("vllm.entrypoints.openai.responses.utils", "construct_tool_dicts"),
    ("vllm.renderers.online_renderer", "_render_responses_with_harmony"),
}
"""Functions below which any exception is about what the client sent."""


class ErrorEnvelope:
    """Rewrites error bodies; turns an exception into one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _Sender(scope, send)
        try:
            await self._app(scope, receive, sender.send)
        except Exception as exception:
            if sender.started:
                raise
            failure = current_notes().failure
            if failure is not None:
                error = from_failure(failure)
            elif _is_about_the_body(exception):
                logger.warning("%s not understood: %r", scope["path"], exception)
                error = HttpError(400, "a field of the body has a wrong type")
            else:
                logger.exception("%s %s failed", scope["method"], scope["path"])
                error = HttpError(500, "internal error: see the frontend's log")
            await error.response(route_path(scope))(scope, receive, send)


class _Sender:
    """Passes on what is fine, collects and rewrites what is an error."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_plain_error(message):
            self._start = message
        elif self._start is None:
            self.started = True
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_rewritten(self._start)

    async def _send_rewritten(self, start: Message) -> None:
        body = self._rewritten(start["status"])
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
        failure = current_notes().failure
        if "retry-after" not in headers:
            wait = failure.retry_after if failure else None
            headers.update(retry_after(start["status"], wait))
        self.started = True
        await self._send({**start, "headers": headers.raw})
        sent = b"" if self._scope["method"] == "HEAD" else body
        await self._send({"type": "http.response.body", "body": sent})

    def _rewritten(self, status: int) -> bytes:
        try:
            found = json.loads(self._body)
        except ValueError:
            found = None
        error = _read_error(found, status, self._scope)
        content = error.body(route_path(self._scope))
        if isinstance(found, dict):
            # A health report says more than its error.
            content = {k: v for k, v in found.items() if k != "detail"} | content
        return json.dumps(content, ensure_ascii=False).encode()


def _is_about_the_body(error: Exception) -> bool:
    """Whether something tripped over a value of the body that it did not expect."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(
        (frame.f_globals.get("__name__"), frame.f_code.co_name) in _READS_THE_BODY
        for frame, _ in frames
    )


def _is_plain_error(start: Message) -> bool:
    kind = Headers(raw=start.get("headers", [])).get("content-type", "")
    return start["status"] >= 400 and not kind.startswith("text/event-stream")


def _read_error(found: Any, status: int, scope: Scope) -> HttpError:
    """Make out what an error body says, whichever of its shapes it has."""
    outer = found if isinstance(found, dict) else {}
    error = outer.get("error")
    if not isinstance(error, dict):
        return HttpError(status, _message(outer, status, scope))
    param = error.get("param")
    return HttpError(
        status=status,
        message=_without_note(str(error.get("message", ""))),
        # FastAPI says where in its own idea of the request a field was.
        param=param.removeprefix("body.") if isinstance(param, str) else None,
        type=error.get("type"),
    )


def _without_note(message: str) -> str:
    note = _PARAMETER_NOTE.search(message) if message.endswith(")") else None
    return message[: note.start()] if note else message


def _message(outer: dict[str, Any], status: int, scope: Scope) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return f"no such endpoint: {scope['method']} {scope['path']}"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{scope['method']} is not a method of {scope['path']}"
    said = outer.get("detail") or outer.get("error")
    return str(said) if said else HTTPStatus(status).phrase
