from google.rpc import status_pb2 as _status_pb2
from ttserve.v1 import generation_pb2 as _generation_pb2
from ttserve.v1 import model_pb2 as _model_pb2
from ttserve.v1 import step_pb2 as _step_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AbortCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ABORT_CAUSE_UNSPECIFIED: _ClassVar[AbortCause]
    ABORT_CAUSE_CLIENT: _ClassVar[AbortCause]
    ABORT_CAUSE_STOP_STRING: _ClassVar[AbortCause]
    ABORT_CAUSE_SHUTDOWN: _ClassVar[AbortCause]
ABORT_CAUSE_UNSPECIFIED: AbortCause
ABORT_CAUSE_CLIENT: AbortCause
ABORT_CAUSE_STOP_STRING: AbortCause
ABORT_CAUSE_SHUTDOWN: AbortCause

class AttachRequest(_message.Message):
    __slots__ = ("open", "submit", "frame", "abort", "ping")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    open: OpenSession
    submit: _generation_pb2.Submission
    frame: SubmissionFrame
    abort: AbortHandles
    ping: Ping
    def __init__(self, open: _Optional[_Union[OpenSession, _Mapping]] = ..., submit: _Optional[_Union[_generation_pb2.Submission, _Mapping]] = ..., frame: _Optional[_Union[SubmissionFrame, _Mapping]] = ..., abort: _Optional[_Union[AbortHandles, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("opened", "accepted", "rejected", "step", "draining", "pong")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    accepted: SubmissionAccepted
    rejected: SubmissionRejected
    step: _step_pb2.StepOutput
    draining: Draining
    pong: Pong
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., accepted: _Optional[_Union[SubmissionAccepted, _Mapping]] = ..., rejected: _Optional[_Union[SubmissionRejected, _Mapping]] = ..., step: _Optional[_Union[_step_pb2.StepOutput, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("protocol_minor", "frontend_name", "vllm_version")
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_NAME_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_minor: int
    frontend_name: str
    vllm_version: str
    def __init__(self, protocol_minor: _Optional[int] = ..., frontend_name: _Optional[str] = ..., vllm_version: _Optional[str] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("protocol_minor", "instance_id", "session_number", "model", "silence_limit_ms")
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SILENCE_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    protocol_minor: int
    instance_id: str
    session_number: int
    model: _model_pb2.Model
    silence_limit_ms: int
    def __init__(self, protocol_minor: _Optional[int] = ..., instance_id: _Optional[str] = ..., session_number: _Optional[int] = ..., model: _Optional[_Union[_model_pb2.Model, _Mapping]] = ..., silence_limit_ms: _Optional[int] = ...) -> None: ...

class SubmissionFrame(_message.Message):
    __slots__ = ("handle", "data", "last")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    handle: int
    data: bytes
    last: bool
    def __init__(self, handle: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class SubmissionAccepted(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class SubmissionRejected(_message.Message):
    __slots__ = ("handle", "status")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    status: _status_pb2.Status
    def __init__(self, handle: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class AbortHandles(_message.Message):
    __slots__ = ("handles", "cause")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[int]
    cause: AbortCause
    def __init__(self, handles: _Optional[_Iterable[int]] = ..., cause: _Optional[_Union[AbortCause, str]] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sequence", "engine_silence_ms", "live_requests")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SILENCE_MS_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    engine_silence_ms: int
    live_requests: int
    def __init__(self, sequence: _Optional[int] = ..., engine_silence_ms: _Optional[int] = ..., live_requests: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt_token_ids", "request_id", "sampling", "stop", "ignore_eos", "logprobs", "structured_output", "priority")
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    request_id: str
    sampling: _generation_pb2.Sampling
    stop: _generation_pb2.StopRules
    ignore_eos: bool
    logprobs: _generation_pb2.LogprobsRequest
    structured_output: _generation_pb2.StructuredOutput
    priority: int
    def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., request_id: _Optional[str] = ..., sampling: _Optional[_Union[_generation_pb2.Sampling, _Mapping]] = ..., stop: _Optional[_Union[_generation_pb2.StopRules, _Mapping]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[_Union[_generation_pb2.LogprobsRequest, _Mapping]] = ..., structured_output: _Optional[_Union[_generation_pb2.StructuredOutput, _Mapping]] = ..., priority: _Optional[int] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("token_ids", "logprobs", "finish", "cached_prompt_tokens", "step_number")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprobs]
    finish: _step_pb2.Finish
    cached_prompt_tokens: int
    step_number: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprobs, _Mapping]]] = ..., finish: _Optional[_Union[_step_pb2.Finish, _Mapping]] = ..., cached_prompt_tokens: _Optional[int] = ..., step_number: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "instance_id", "protocol_minor")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MINOR_FIELD_NUMBER: _ClassVar[int]
    model: _model_pb2.Model
    instance_id: str
    protocol_minor: int
    def __init__(self, model: _Optional[_Union[_model_pb2.Model, _Mapping]] = ..., instance_id: _Optional[str] = ..., protocol_minor: _Optional[int] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: BundleFile
    data: bytes
    def __init__(self, file: _Optional[_Union[BundleFile, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class BundleFile(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...
