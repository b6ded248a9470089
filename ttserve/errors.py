"""The one table of what can go wrong, and the exception that carries it.

A reason maps to a gRPC code, an HTTP status and whether trying again can help.
Client logic uses the reason and the code, never the text of a message. This
module imports neither grpc nor generated code, so every layer may use it; a
test holds `Reason` equal to the protocol's `ErrorReason`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

DOMAIN = "ttserve"


class GrpcCode(enum.IntEnum):
    """The gRPC status codes that ttserve uses, with their wire numbers."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class Reason(enum.Enum):
    """Why something was refused or failed; names are those on the wire."""

    PROMPT_TOO_LONG = enum.auto()
    INVALID_FIELD = enum.auto()
    UNSUPPORTED = enum.auto()
    REQUEST_ID_IN_USE = enum.auto()
    QUEUE_FULL = enum.auto()
    NOT_READY = enum.auto()
    DRAINING = enum.auto()
    BAD_SESSION_ORDER = enum.auto()
    VERSION_MISMATCH = enum.auto()
    STEP_FAILED = enum.auto()
    MESH_POISONED = enum.auto()
    DEVICE_LOST = enum.auto()
    GRAMMAR = enum.auto()
    HEARTBEAT_LOST = enum.auto()
    STEP_CONTROL_DISABLED = enum.auto()
    INTERNAL = enum.auto()
    UNKNOWN_REQUEST = enum.auto()
    UNAUTHENTICATED = enum.auto()
    PERMISSION_DENIED = enum.auto()


@dataclass(frozen=True, slots=True)
class Consequence:
    """What a reason means to a gRPC client and to an HTTP client."""

    code: GrpcCode
    http_status: int
    retryable: bool


CONSEQUENCES: dict[Reason, Consequence] = {
    Reason.PROMPT_TOO_LONG: Consequence(GrpcCode.INVALID_ARGUMENT, 400, False),
    Reason.INVALID_FIELD: Consequence(GrpcCode.INVALID_ARGUMENT, 400, False),
    Reason.UNSUPPORTED: Consequence(GrpcCode.INVALID_ARGUMENT, 400, False),
    Reason.REQUEST_ID_IN_USE: Consequence(GrpcCode.ALREADY_EXISTS, 500, False),
    Reason.QUEUE_FULL: Consequence(GrpcCode.RESOURCE_EXHAUSTED, 429, True),
    Reason.NOT_READY: Consequence(GrpcCode.UNAVAILABLE, 503, True),
    Reason.DRAINING: Consequence(GrpcCode.UNAVAILABLE, 503, True),
    Reason.BAD_SESSION_ORDER: Consequence(GrpcCode.FAILED_PRECONDITION, 500, False),
    Reason.VERSION_MISMATCH: Consequence(GrpcCode.FAILED_PRECONDITION, 500, False),
    Reason.STEP_FAILED: Consequence(GrpcCode.INTERNAL, 500, False),
    Reason.MESH_POISONED: Consequence(GrpcCode.UNAVAILABLE, 503, True),
    Reason.DEVICE_LOST: Consequence(GrpcCode.UNAVAILABLE, 503, True),
    Reason.GRAMMAR: Consequence(GrpcCode.INVALID_ARGUMENT, 400, False),
    Reason.HEARTBEAT_LOST: Consequence(GrpcCode.DEADLINE_EXCEEDED, 503, True),
    Reason.STEP_CONTROL_DISABLED: Consequence(GrpcCode.PERMISSION_DENIED, 403, False),
    Reason.INTERNAL: Consequence(GrpcCode.INTERNAL, 500, False),
    Reason.UNKNOWN_REQUEST: Consequence(GrpcCode.NOT_FOUND, 404, False),
    # A frontend's own token is wrong: its clients cannot help that, but may wait.
    Reason.UNAUTHENTICATED: Consequence(GrpcCode.UNAUTHENTICATED, 503, True),
    Reason.PERMISSION_DENIED: Consequence(GrpcCode.PERMISSION_DENIED, 503, True),
}


class TTServeError(Exception):
    """An error with a reason; it travels in band, as a status or as HTTP.

    `metadata` holds every dynamic part of the message (AIP-193), keys in
    lowerCamelCase. `retry_after` is in seconds and set only where waiting
    helps.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        metadata: dict[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}
        self.retry_after = retry_after

    @property
    def consequence(self) -> Consequence:
        """What the reason means on both protocols."""
        return CONSEQUENCES[self.reason]


class StartupError(Exception):
    """A start-up problem: printed as one line, exit status 2, no traceback."""


def invalid_field(field: str, message: str) -> TTServeError:
    """Refuse a request because of one field, named in the metadata."""
    return TTServeError(Reason.INVALID_FIELD, message, metadata={"field": field})


def unsupported(field: str, message: str) -> TTServeError:
    """Refuse a request because model or mesh cannot do what a field asks for."""
    return TTServeError(Reason.UNSUPPORTED, message, metadata={"field": field})
