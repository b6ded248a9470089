from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_PROMPT_TOO_LONG: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_ID_IN_USE: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_BAD_SESSION_ORDER: _ClassVar[ErrorReason]
    ERROR_REASON_VERSION_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_STEP_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_MESH_POISONED: _ClassVar[ErrorReason]
    ERROR_REASON_DEVICE_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_GRAMMAR: _ClassVar[ErrorReason]
    ERROR_REASON_HEARTBEAT_LOST: _ClassVar[ErrorReason]
    ERROR_REASON_STEP_CONTROL_DISABLED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_PROMPT_TOO_LONG: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_UNSUPPORTED: ErrorReason
ERROR_REASON_REQUEST_ID_IN_USE: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_NOT_READY: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_BAD_SESSION_ORDER: ErrorReason
ERROR_REASON_VERSION_MISMATCH: ErrorReason
ERROR_REASON_STEP_FAILED: ErrorReason
ERROR_REASON_MESH_POISONED: ErrorReason
ERROR_REASON_DEVICE_LOST: ErrorReason
ERROR_REASON_GRAMMAR: ErrorReason
ERROR_REASON_HEARTBEAT_LOST: ErrorReason
ERROR_REASON_STEP_CONTROL_DISABLED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_UNKNOWN_REQUEST: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
