"""What waits to be written to an Attach stream, urgent things first.

A large submission travels in frames. Pings and aborts go between two frames,
so an image or a book in the prompt delays neither; submissions keep their
order among themselves. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from ttserve.protocol import FRAME_BYTES
from ttserve.v1.device_pb2 import (
    AbortCause,
    AbortHandles,
    AttachRequest,
    OpenSession,
    Ping,
    SubmissionFrame,
)
from ttserve.v1.generation_pb2 import Submission

LARGEST_WHOLE_SUBMISSION = 32768
"""Bytes; what is larger travels in frames (SubmissionFrame says so)."""


class _Framed:
    """A submission on its way, piece by piece; then perhaps its abort."""

    def __init__(self, submission: Submission) -> None:
        self.handle = submission.handle
        self.in_group = submission.HasField("group")
        self.abort_cause: AbortCause | None = None
        self._data = memoryview(submission.SerializeToString())
        self._sent = 0

    @property
    def started(self) -> bool:
        return self._sent > 0

    @property
    def done(self) -> bool:
        return self._sent >= len(self._data)

    def next_frame(self) -> AttachRequest:
        piece = self._data[self._sent : self._sent + FRAME_BYTES]
        self._sent += len(piece)
        return AttachRequest(
            frame=SubmissionFrame(handle=self.handle, data=bytes(piece), last=self.done)
        )


class Outbox:
    """A queue with a fast lane; `next` waits when both are empty."""

    def __init__(self) -> None:
        self._urgent: deque[AttachRequest] = deque()
        self._submissions: deque[AttachRequest | _Framed] = deque()
        self._filled = asyncio.Event()
        self._closed = False

    def put_open(self, hello: OpenSession) -> None:
        """Introduce the frontend; to be called first."""
        self._put_urgent(AttachRequest(open=hello))

    def put_ping(self, sequence: int) -> None:
        """Show that the frontend lives; nobody asks once the outbox is closed."""
        if not self._closed:
            self._put_urgent(AttachRequest(ping=Ping(sequence=sequence)))

    def put_submission(self, submission: Submission) -> None:
        """Submit, whole or in frames."""
        if submission.ByteSize() <= LARGEST_WHOLE_SUBMISSION:
            self._submissions.append(AttachRequest(submit=submission))
        else:
            self._submissions.append(_Framed(submission))
        self._filled.set()

    def put_abort(self, handles: Iterable[int], cause: AbortCause) -> None:
        """Stop generations; an abort never overtakes its own submission.

        A submission that has not begun to travel is forgotten; of one that is
        half way, the rest is sent and the abort follows at once.
        """
        known = self._withdraw(set(handles), cause)
        if known:
            self._put_urgent(_abort(known, cause))

    def close(self) -> None:
        """Nothing is to be submitted any more; what is queued is still written."""
        self._closed = True
        self._filled.set()

    async def next(self) -> AttachRequest | None:
        """The message to write now; None when the outbox is closed and empty."""
        while not (self._urgent or self._submissions):
            if self._closed:
                return None
            self._filled.clear()
            await self._filled.wait()
        if self._urgent:
            return self._urgent.popleft()
        waiting = self._submissions[0]
        if isinstance(waiting, AttachRequest):
            self._submissions.popleft()
            return waiting
        frame = waiting.next_frame()
        if waiting.done:
            self._submissions.popleft()
            if waiting.abort_cause is not None:
                self._put_urgent(_abort([waiting.handle], waiting.abort_cause))
        return frame

    def _put_urgent(self, message: AttachRequest) -> None:
        self._urgent.append(message)
        self._filled.set()

    def _withdraw(self, handles: set[int], cause: AbortCause) -> set[int]:
        """Take out submissions that wait; return the handles that are over there.

        A child of a group is sent all the same: its siblings may have arrived,
        and the group is decided when it is complete.
        """
        kept: deque[AttachRequest | _Framed] = deque()
        for waiting in self._submissions:
            if _handle(waiting) not in handles:
                kept.append(waiting)
                continue
            handles.discard(_handle(waiting))
            if isinstance(waiting, _Framed):
                if waiting.started or waiting.in_group:
                    waiting.abort_cause = cause
                    kept.append(waiting)
            elif waiting.submit.HasField("group"):
                kept += (waiting, _abort({_handle(waiting)}, cause))
        self._submissions = kept
        return handles


def _handle(waiting: AttachRequest | _Framed) -> int:
    return waiting.handle if isinstance(waiting, _Framed) else waiting.submit.handle


def _abort(handles: Iterable[int], cause: AbortCause) -> AttachRequest:
    return AttachRequest(abort=AbortHandles(handles=sorted(handles), cause=cause))
