"""TTServeError <-> google.rpc.Status, and how a Status travels in gRPC.

A status always holds one ErrorInfo (domain "ttserve", reason without prefix,
metadata with every dynamic part of the message) and, where waiting helps, one
RetryInfo. In band it is a field of a message; on a failed RPC it travels in the
trailers, where every gRPC language finds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from ttserve.errors import DOMAIN, GrpcCode, Reason, TTServeError

if TYPE_CHECKING:
    import grpc.aio

_BY_CODE = {
    GrpcCode.INVALID_ARGUMENT: Reason.INVALID_FIELD,
    GrpcCode.DEADLINE_EXCEEDED: Reason.HEARTBEAT_LOST,
    GrpcCode.NOT_FOUND: Reason.UNKNOWN_REQUEST,
    GrpcCode.ALREADY_EXISTS: Reason.REQUEST_ID_IN_USE,
    GrpcCode.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    GrpcCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    GrpcCode.RESOURCE_EXHAUSTED: Reason.QUEUE_FULL,
    GrpcCode.FAILED_PRECONDITION: Reason.BAD_SESSION_ORDER,
    GrpcCode.INTERNAL: Reason.INTERNAL,
    GrpcCode.UNAVAILABLE: Reason.DEVICE_LOST,
}
"""What a status means whose reason we do not know, or that is gRPC's own."""


def to_status(error: TTServeError) -> status_pb2.Status:
    """The error as it goes over the wire."""
    status = status_pb2.Status(code=error.consequence.code, message=error.message)
    info = error_details_pb2.ErrorInfo(
        reason=error.reason.name, domain=DOMAIN, metadata=error.metadata
    )
    status.details.add().Pack(info)
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def from_status(status: status_pb2.Status) -> TTServeError:
    """The error that a status carries, whoever wrote it."""
    info, retry_after = _details(status)
    reason = Reason.__members__.get(info.reason) if info.domain == DOMAIN else None
    return TTServeError(
        reason or _reason_of_code(status.code),
        status.message,
        metadata=dict(info.metadata),
        retry_after=retry_after,
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> TTServeError:
    """The error that a failed RPC carries in its trailers, or its bare code."""
    status = _carried(error)
    if status is not None:
        return from_status(status)
    code: int = error.code().value[0]
    return TTServeError(_reason_of_code(code), error.details() or error.code().name)


def is_from_us(error: grpc.aio.AioRpcError) -> bool:
    """Whether a service of ours said why, and not gRPC alone that an RPC failed."""
    status = _carried(error)
    return status is not None and _details(status)[0].domain == DOMAIN


def _carried(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    try:
        carried: status_pb2.Status | None = rpc_status.from_call(error)  # type: ignore[arg-type]
    except ValueError:  # the trailers contradict the RPC: believe the RPC
        return None
    return carried


def to_grpc_status(error: TTServeError) -> grpc.Status:
    """What `context.abort_with_status` takes."""
    return rpc_status.to_status(to_status(error))


def _details(
    status: status_pb2.Status,
) -> tuple[error_details_pb2.ErrorInfo, float | None]:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after = retry.retry_delay.ToMilliseconds() / 1000
    return info, retry_after


def _reason_of_code(code: int) -> Reason:
    known = {item.value for item in GrpcCode}
    return _BY_CODE[GrpcCode(code)] if code in known else Reason.INTERNAL
