"""Comments on streams that have nothing to say, so that no proxy closes them.

A long prefill is silent for as long as it takes. vLLM can do the same for two of
its APIs, with a task per chunk; this is one timer per stream, for all.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontend.http.streams import is_event_stream

COMMENT = b": keep-alive\n\n"


class KeepAlive:
    """Sends a comment whenever an event stream was silent for `seconds`; 0 is never.

    A chunk of the app is one or more whole events, so a comment fits between.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._seconds:
            await self._app(scope, receive, send)
            return
        stream = _Stream(send, self._seconds)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            await stream.close()


class _Stream:
    """What is sent, one message at a time, with comments in between."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._one_at_a_time = asyncio.Lock()
        self._timer: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Pass on a message of the app."""
        await self._send_alone(message)
        if message["type"] == "http.response.start":
            if is_event_stream(message):
                self._timer = asyncio.create_task(self._comment_when_silent())
        elif not message.get("more_body", False):
            await self.close()

    async def close(self) -> None:
        """No more comments."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    async def _send_alone(self, message: Message) -> None:
        async with self._one_at_a_time:
            self._last = self._loop.time()
            await self._send(message)

    async def _comment_when_silent(self) -> None:
        comment = {"type": "http.response.body", "body": COMMENT, "more_body": True}
        while True:
            silent = self._loop.time() - self._last
            if silent >= self._seconds:
                await self._send_alone(comment)
            else:
                await asyncio.sleep(self._seconds - silent)
