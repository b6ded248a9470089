"""One Attach stream to a device service, from `open` to its end.

Three tasks serve a session: one reads, one writes, one sends heartbeats and
listens for silence. The first to end says why the session ended. Everything
runs on the event loop that created it, and the listener is called there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

import grpc.aio

from frontend.config import Liveness
from frontend.device.outbox import Outbox
from ttserve.errors import Reason, TTServeError
from ttserve.status import from_rpc_error, is_from_us
from ttserve.v1.device_pb2 import (
    AbortCause,
    AttachRequest,
    AttachResponse,
    OpenSession,
    Pong,
    SessionOpened,
)
from ttserve.v1.generation_pb2 import Submission

logger = logging.getLogger(__name__)

OPEN_SECONDS = 5.0
"""How long `open`, or the half-close, may take to be answered: longer than a heartbeat,
because a device service that has just started, or that ends, is busy."""

REMEMBERED_PINGS = 16
PINGS_PER_LIMIT = 5
TICKS_PER_SILENCE = 20
STALL_TICKS = 4


class AttachCall(Protocol):
    """The part of a grpc.aio stream that a session uses."""

    def __aiter__(self) -> AsyncIterator[AttachResponse]: ...

    async def write(self, request: AttachRequest) -> None: ...

    async def done_writing(self) -> None: ...

    def cancel(self) -> bool: ...


class SessionListener(Protocol):
    """Who is told what comes down the stream. Must not block."""

    def on_opened(self, session: Session, opened: SessionOpened) -> None:
        """The session can be used from now on."""

    def on_message(self, response: AttachResponse) -> None:
        """Anything but `opened` and `pong`, in order."""

    def on_pong(self, pong: Pong, round_trip: float) -> None:
        """A heartbeat came back after `round_trip` seconds."""


class Session:
    """Writes submissions and aborts, hands what comes back to its listener."""

    def __init__(
        self, call: AttachCall, listener: SessionListener, liveness: Liveness
    ) -> None:
        self._call = call
        self._listener = listener
        self._liveness = liveness
        self._outbox = Outbox()
        self._opened = self._finished = False
        self._ping_interval = liveness.ping_interval
        self._silence = 0.0
        self._pings: dict[int, float] = {}

    def submit(self, submission: Submission) -> None:
        """Queue a submission; its answer comes to the listener."""
        self._outbox.put_submission(submission)

    def abort(self, handles: Iterable[int], cause: AbortCause) -> None:
        """Queue an abort; nothing more is heard of the handles, or once more."""
        self._outbox.put_abort(handles, cause)

    def finish(self) -> None:
        """Half-close: nothing is open here, and nothing more is to be submitted.

        A device service that drains waits for this: it shows that what it wrote has
        been read.
        """
        self._finished = True
        self._outbox.close()

    def end(self) -> None:
        """End the stream; `run` returns soon."""
        self._call.cancel()

    async def run(self, hello: OpenSession) -> TTServeError:
        """Serve the stream until it ends, and say why it ended."""
        self._outbox.put_open(hello)
        tasks = [
            asyncio.create_task(part)
            for part in (self._read(), self._write(), self._listen_for_silence())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The reader knows the status of the stream, the writer only that it broke.
            return min(done, key=tasks.index).result()
        finally:
            self._call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> TTServeError:
        try:
            async for response in self._call:
                self._silence = 0.0
                self._take(response)
        except grpc.aio.AioRpcError as error:
            return _why(error)
        except asyncio.CancelledError:  # `run` is ending, or the channel is closing
            return _lost("the stream to the device service was cancelled")
        except Exception as error:
            logger.exception("cannot make sense of what the device service sent")
            return TTServeError(Reason.INTERNAL, f"session failed: {error}")
        return _lost("the device service closed the stream")

    def _take(self, response: AttachResponse) -> None:
        event = response.WhichOneof("event")
        if event == "pong":
            sent = self._pings.pop(response.pong.sequence, None)
            if sent is not None:
                self._listener.on_pong(response.pong, time.monotonic() - sent)
        elif event == "opened":
            self._opened = True
            self._heed_limit(response.opened.silence_limit_ms / 1000)
            self._listener.on_opened(self, response.opened)
        else:
            self._listener.on_message(response)

    def _heed_limit(self, seconds: float) -> None:
        """The device service drops a frontend that is silent for so long."""
        if seconds > 0:
            self._ping_interval = min(self._ping_interval, seconds / PINGS_PER_LIMIT)

    async def _write(self) -> TTServeError:
        try:
            while (request := await self._outbox.next()) is not None:
                await self._call.write(request)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            logger.debug("nothing can be written any more: %r", error)
        # The reader will know why the stream ends, or the listener that nothing comes.
        await asyncio.sleep(OPEN_SECONDS)
        return _lost("the stream to the device service has ended")

    async def _listen_for_silence(self) -> TTServeError:
        """Ping, and count the silence that this process was awake to hear.

        A tick that comes late means that we were held up, not that the device
        service was silent: what it sent meanwhile has not been read yet.
        """
        interval = self._liveness.lost_after / TICKS_PER_SILENCE
        next_ping = before = time.monotonic()
        sequence = 0
        while True:
            answers = self._opened and not self._finished
            limit = self._liveness.lost_after if answers else OPEN_SECONDS
            if self._silence >= limit:
                return _lost(_silent(limit, opened=self._opened))
            if self._opened and before >= next_ping:
                sequence += 1
                self._pings[sequence] = before
                self._pings.pop(sequence - REMEMBERED_PINGS, None)
                self._outbox.put_ping(sequence)
                next_ping = before + self._ping_interval
            await asyncio.sleep(interval)
            now = time.monotonic()
            self._silence += min(now - before, STALL_TICKS * interval)
            before = now


def _why(error: grpc.aio.AioRpcError) -> TTServeError:
    """Why the stream ended. What gRPC says of a broken one is for the log only:
    it names addresses, and clients are told the reason.
    """
    failure = from_rpc_error(error)
    # A device service says more than a bare INTERNAL; gRPC says that when a message
    # could not be sent, whatever the stream's own status is.
    bare = failure.reason is Reason.INTERNAL and not is_from_us(error)
    if failure.reason is not Reason.DEVICE_LOST and not bare:
        return failure
    logger.debug("stream broken: %s", failure.message)
    return _lost("the connection to the device service broke")


def _silent(seconds: float, *, opened: bool) -> str:
    if opened:
        return f"the device service was silent for {seconds:g} s"
    return "the device service cannot be reached, or does not answer"


def _lost(message: str) -> TTServeError:
    return TTServeError(Reason.DEVICE_LOST, message, retry_after=1.0)
