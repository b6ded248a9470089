"""The small messages down an Attach stream."""

from __future__ import annotations

from device_service.records import AbortCause
from ttserve.errors import TTServeError, invalid_field
from ttserve.status import to_status
from ttserve.v1 import device_pb2

_CAUSES = {
    device_pb2.ABORT_CAUSE_CLIENT: AbortCause.CLIENT,
    device_pb2.ABORT_CAUSE_STOP_STRING: AbortCause.STOP_STRING,
    device_pb2.ABORT_CAUSE_SHUTDOWN: AbortCause.SHUTDOWN,
}


def accepted(handle: int) -> device_pb2.AttachResponse:
    """The submission is in the queue."""
    return device_pb2.AttachResponse(
        accepted=device_pb2.SubmissionAccepted(handle=handle)
    )


def rejected(handle: int, error: TTServeError) -> device_pb2.AttachResponse:
    """The submission is refused, and nothing else follows for it."""
    return device_pb2.AttachResponse(
        rejected=device_pb2.SubmissionRejected(handle=handle, status=to_status(error))
    )


def pong(
    sequence: int, engine_silence_seconds: float, live_requests: int
) -> device_pb2.AttachResponse:
    """The device service lives, and has so many requests of all sessions."""
    return device_pb2.AttachResponse(
        pong=device_pb2.Pong(
            sequence=sequence,
            engine_silence_ms=int(engine_silence_seconds * 1000),
            live_requests=live_requests,
        )
    )


def draining(grace_seconds: float) -> device_pb2.AttachResponse:
    """The device service is going away."""
    return device_pb2.AttachResponse(
        draining=device_pb2.Draining(grace_ms=int(grace_seconds * 1000))
    )


def abort_cause(value: device_pb2.AbortCause) -> AbortCause:
    """Why a frontend stops generations; an unknown value is refused."""
    cause = _CAUSES.get(value)
    if cause is None:
        raise invalid_field("abort.cause", f"abort cause {value} is not known")
    return cause
