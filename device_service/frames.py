"""Submissions that arrive in pieces, put together within bounds."""

from __future__ import annotations

from ttserve.errors import Reason, TTServeError, invalid_field
from ttserve.protocol import FRAME_BYTES
from ttserve.v1 import device_pb2

MAX_UNFINISHED = 1024
"""Most submissions of one stream that are on their way in pieces."""

MAX_UNFINISHED_SIZES = 8
"""Most bytes of unfinished submissions, in units of the largest submission."""


class FrameAssembler:
    """The unfinished submissions of one stream, by handle.

    A handle whose submission was refused or aborted is remembered for a while,
    so that frames which are still on their way are swallowed.
    """

    def __init__(self, max_submission_bytes: int) -> None:
        self._max_bytes = max_submission_bytes
        self._pieces: dict[int, bytearray] = {}
        self._held = 0
        self._swallowed: dict[int, None] = {}

    def __contains__(self, handle: int) -> bool:
        return handle in self._pieces

    def add(self, frame: device_pb2.SubmissionFrame) -> bytes | None:
        """Take a frame; the whole submission when this was its last one.

        Raises once for a submission that breaks a bound; its later frames are
        swallowed.
        """
        handle = frame.handle
        if handle in self._swallowed:
            if frame.last:
                del self._swallowed[handle]
            return None
        pieces = self._pieces.setdefault(handle, bytearray())
        try:
            self._check(len(pieces), frame)
        except TTServeError:
            self._drop(handle)
            if not frame.last:
                self._swallow(handle)
            raise
        pieces += frame.data
        self._held += len(frame.data)
        if not frame.last:
            return None
        self._drop(handle)
        return bytes(pieces)

    def discard(self, handle: int) -> None:
        """Forget an unfinished submission and swallow what still comes of it."""
        if handle in self._pieces:
            self._drop(handle)
            self._swallow(handle)

    def _drop(self, handle: int) -> None:
        self._held -= len(self._pieces.pop(handle))

    def _swallow(self, handle: int) -> None:
        self._swallowed[handle] = None
        if len(self._swallowed) > MAX_UNFINISHED:
            del self._swallowed[next(iter(self._swallowed))]

    def _check(self, have: int, frame: device_pb2.SubmissionFrame) -> None:
        size = len(frame.data)
        if size > FRAME_BYTES:
            raise invalid_field(
                "frame.data", f"a frame has {size} bytes; at most {FRAME_BYTES} go in"
            )
        if have + size > self._max_bytes:
            raise too_large(have + size, self._max_bytes)
        most = MAX_UNFINISHED_SIZES * self._max_bytes
        if len(self._pieces) > MAX_UNFINISHED or self._held + size > most:
            raise TTServeError(
                Reason.QUEUE_FULL,
                "too many large submissions are on their way at the same time",
                retry_after=1.0,
            )


def too_large(size: int, limit: int) -> TTServeError:
    """Refuse a submission of more bytes than the model's limits allow."""
    return TTServeError(
        Reason.INVALID_FIELD,
        f"the submission has {size} bytes or more; at most {limit} are taken",
        metadata={
            "field": "submission",
            "bytes": str(size),
            "maxSubmissionBytes": str(limit),
        },
    )
