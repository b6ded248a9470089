"""One Attach stream: a frontend, from `open` to the end of its requests.

Two loops, as in etcd's watch server: one receives, one sends, and only the
outbox connects them, so a frontend that does not read cannot stop us from
hearing its aborts, and the engine thread waits for nobody. A third task listens
for silence. Whatever ends the stream, `run` ends its requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from device_service.codec.answers import abort_cause, draining, pong
from device_service.codec.model import model_message
from device_service.frames import FrameAssembler, too_large
from device_service.outbox import Outbox
from device_service.records import StepUpdates
from device_service.serving import Published, Running, Serving
from device_service.submissions import Stream, Submissions
from ttserve.errors import Reason, TTServeError, invalid_field
from ttserve.protocol import FRAME_BYTES, OLDEST_PROTOCOL_MINOR, PROTOCOL_MINOR
from ttserve.v1 import device_pb2, generation_pb2

logger = logging.getLogger(__name__)

INLINE_BYTES = FRAME_BYTES + 1024
"""Largest message that is parsed on the event loop: a frame, and some 0.6 ms."""

LATE_ANSWER_SECONDS = 0.05
"""How long a silent frontend's messages may still sit unread in our own queue."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The two directions of the stream. Messages up are still serialized."""

    peer: str
    requests: AsyncIterator[bytes]
    write: Callable[[device_pb2.AttachResponse], Awaitable[None]]


class Session:
    """A frontend's stream; the engine delivers to it as an `UpdateSink`."""

    def __init__(self, number: int, wire: Wire, serving: Serving) -> None:
        self.number = number
        self.peer = wire.peer
        self.frontend_name = ""
        self.closed = asyncio.Event()  # the RPC too: all was written
        self._wire = wire
        self._serving = serving
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._heard_at = self._loop.time()
        self._half_closed = self._closing = False
        self._outbox = Outbox()
        self._running: Running = serving.require_open()
        self._published: Published = serving.require_model()
        limits = self._published.description.limits
        self._max_submission_bytes = limits.max_submission_bytes
        self._frames = FrameAssembler(limits.max_submission_bytes)
        self._submissions = Submissions(
            Stream(
                number=number,
                sink=self,
                outbox=self._outbox,
                checkers=serving.checkers,
                settled=self._close_when_done,
            ),
            self._running.admission,
        )

    # -- for others --------------------------------------------------------

    @property
    def live_requests(self) -> int:
        """Requests that are checked, waiting or running."""
        return len(self._submissions)

    @property
    def merged_steps(self) -> int:
        """Steps that were merged because the frontend read slowly."""
        return self._outbox.merged_steps

    @property
    def age_seconds(self) -> float:
        """Seconds since the stream began."""
        return self._loop.time() - self._opened_at

    def deliver(self, updates: StepUpdates) -> None:
        """Take a step's updates from the engine thread: one wake-up, no waiting."""
        try:
            self._loop.call_soon_threadsafe(self._submissions.apply, updates)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            logger.debug("session %d: updates after the end", self.number)

    def announce_draining(self, grace_seconds: float) -> None:
        """Tell the frontend that submissions are refused from now on."""
        if self.frontend_name:  # `opened` comes first
            self._outbox.put(draining(grace_seconds))

    def end(self) -> None:
        """End the stream once everything queued is written."""
        self._outbox.close()

    # -- the stream --------------------------------------------------------

    async def run(self) -> TTServeError | None:
        """Serve the stream; what it ends with, None for OK.

        A service that takes nothing new says why at the end of its streams.

        Raises what a failed write raises, or CancelledError: the frontend is
        gone then.
        """
        sending = asyncio.create_task(self._send())
        tasks = {
            sending,
            asyncio.create_task(self._receive()),
            asyncio.create_task(self._listen()),
        }
        try:
            pending = tasks
            while not sending.done():
                done, pending = await asyncio.wait(
                    pending, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
        except TTServeError as error:
            return error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._submissions.abandon()
        return self._serving.refusal

    async def _send(self) -> None:
        while (message := await self._outbox.take()) is not None:
            await self._wire.write(message)

    async def _receive(self) -> None:
        """Read until the frontend half-closes; no more submissions after that.

        A cancelled RPC also ends this loop quietly: grpc.aio tells the handler.
        """
        async for data in self._wire.requests:
            self._heard_at = self._loop.time()
            message = await self._parse(data)
            if message is not None:
                self._dispatch(message, len(data))
            await self._outbox.room()
        self._half_closed = True
        self._close_when_done()

    async def _listen(self) -> None:
        """End the session of a frontend that has been silent for too long."""
        limit = self._serving.options.silence_limit
        while not self._half_closed:
            heard_at = self._heard_at
            silence = self._loop.time() - heard_at
            if silence < limit:
                await asyncio.sleep(limit - silence)
                continue
            await asyncio.sleep(LATE_ANSWER_SECONDS)
            if self._heard_at == heard_at and not self._half_closed:
                raise TTServeError(
                    Reason.HEARTBEAT_LOST,
                    f"the frontend sent nothing for {silence:.1f} s",
                    metadata={"silenceMs": str(int(silence * 1000))},
                )

    def _close_when_done(self) -> None:
        done = self._half_closed and not self._submissions.busy
        if done and not self._closing:
            self._closing = True
            self._submissions.refuse_held()
            self._outbox.close()

    # -- messages up -------------------------------------------------------

    async def _parse(self, data: bytes) -> device_pb2.AttachRequest | None:
        """Parse a message, a large one in a worker thread."""
        try:
            if len(data) <= INLINE_BYTES:
                return device_pb2.AttachRequest.FromString(data)
            # Not among the checkers: slow checks must not delay what follows.
            return await asyncio.to_thread(device_pb2.AttachRequest.FromString, data)
        except DecodeError as error:
            raise invalid_field("event", "the message is no AttachRequest") from error

    def _dispatch(self, message: device_pb2.AttachRequest, size: int) -> None:
        event = message.WhichOneof("event")
        if event == "open":
            self._open(message.open)
        elif not self.frontend_name:
            raise TTServeError(
                Reason.BAD_SESSION_ORDER, f"`{event}` came before `open`"
            )
        elif event == "ping":
            silence = self._running.engine.silence_seconds()
            live = len(self._running.admission)
            self._outbox.put(pong(message.ping.sequence, silence, live))
        elif event == "submit":
            self._submit(message.submit, size)
        elif event == "frame":
            self._take_frame(message.frame)
        elif event == "abort":
            cause = abort_cause(message.abort.cause)
            for handle in message.abort.handles:
                self._frames.discard(handle)
            self._submissions.abort(message.abort.handles, cause)
        else:
            raise invalid_field(
                "event", "the message holds no event that this version knows"
            )

    def _open(self, opening: device_pb2.OpenSession) -> None:
        if self.frontend_name:
            raise TTServeError(Reason.BAD_SESSION_ORDER, "a second `open` came")
        self._check_versions(opening)
        name = opening.frontend_name
        if not (1 <= len(name) <= 63 and name.isprintable()):
            raise invalid_field(
                "open.frontend_name",
                "frontend_name must have 1 to 63 printable characters",
            )
        self.frontend_name = name
        opened = device_pb2.SessionOpened(
            protocol_minor=PROTOCOL_MINOR,
            instance_id=self._serving.instance_id,
            session_number=self.number,
            model=model_message(self._published.description),
            silence_limit_ms=int(self._serving.options.silence_limit * 1000),
        )
        self._outbox.put(device_pb2.AttachResponse(opened=opened))
        logger.info("session %d: %s attached from %s", self.number, name, self.peer)

    def _check_versions(self, opening: device_pb2.OpenSession) -> None:
        ours = self._published.description.vllm_version
        if opening.protocol_minor < OLDEST_PROTOCOL_MINOR:
            raise version_mismatch(
                "protocol ttserve.v1",
                f"minor {opening.protocol_minor}",
                f"minor {PROTOCOL_MINOR}",
            )
        if opening.vllm_version != ours:
            raise version_mismatch("vLLM", opening.vllm_version, ours)

    def _submit(self, message: generation_pb2.Submission, size: int) -> None:
        if message.handle in self._frames:
            raise invalid_field("handle", f"handle {message.handle} is still live")
        if size > self._max_submission_bytes:
            error = too_large(size, self._max_submission_bytes)
            self._submissions.refuse(message.handle, error)
            return
        self._submissions.submit(message, size)

    def _take_frame(self, frame: device_pb2.SubmissionFrame) -> None:
        if frame.handle in self._submissions:
            raise invalid_field("handle", f"handle {frame.handle} is still live")
        try:
            data = self._frames.add(frame)
        except TTServeError as error:
            self._submissions.refuse(frame.handle, error)
            return
        if data is not None:
            self._submissions.submit_bytes(frame.handle, data)


def version_mismatch(what: str, frontend: str, device_service: str) -> TTServeError:
    """The two sides cannot work together."""
    return TTServeError(
        Reason.VERSION_MISMATCH,
        f"{what}: the frontend has {frontend or 'none'}, the device service "
        f"{device_service}",
        metadata={"frontend": frontend, "deviceService": device_service},
    )
