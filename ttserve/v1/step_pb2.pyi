from google.rpc import status_pb2 as _status_pb2
from ttserve.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestEventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_EVENT_KIND_UNSPECIFIED: _ClassVar[RequestEventKind]
    REQUEST_EVENT_KIND_QUEUED: _ClassVar[RequestEventKind]
    REQUEST_EVENT_KIND_SCHEDULED: _ClassVar[RequestEventKind]
    REQUEST_EVENT_KIND_PREEMPTED: _ClassVar[RequestEventKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
    FINISH_REASON_REPETITION: _ClassVar[FinishReason]
REQUEST_EVENT_KIND_UNSPECIFIED: RequestEventKind
REQUEST_EVENT_KIND_QUEUED: RequestEventKind
REQUEST_EVENT_KIND_SCHEDULED: RequestEventKind
REQUEST_EVENT_KIND_PREEMPTED: RequestEventKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ABORT: FinishReason
FINISH_REASON_ERROR: FinishReason
FINISH_REASON_REPETITION: FinishReason

class StepOutput(_message.Message):
    __slots__ = ("step_number", "handles", "token_ids", "token_counts", "extras", "stats", "monotonic_seconds")
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXTRAS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_SECONDS_FIELD_NUMBER: _ClassVar[int]
    step_number: int
    handles: _containers.RepeatedScalarFieldContainer[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_counts: _containers.RepeatedScalarFieldContainer[int]
    extras: _containers.RepeatedCompositeFieldContainer[RequestExtra]
    stats: SchedulerStats
    monotonic_seconds: float
    def __init__(self, step_number: _Optional[int] = ..., handles: _Optional[_Iterable[int]] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_counts: _Optional[_Iterable[int]] = ..., extras: _Optional[_Iterable[_Union[RequestExtra, _Mapping]]] = ..., stats: _Optional[_Union[SchedulerStats, _Mapping]] = ..., monotonic_seconds: _Optional[float] = ...) -> None: ...

class RequestExtra(_message.Message):
    __slots__ = ("index", "logprobs", "finish", "prefill", "events")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_generation_pb2.TokenLogprobs]
    finish: Finish
    prefill: PrefillReport
    events: _containers.RepeatedCompositeFieldContainer[RequestEvent]
    def __init__(self, index: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_generation_pb2.TokenLogprobs, _Mapping]]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., prefill: _Optional[_Union[PrefillReport, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RequestEvent, _Mapping]]] = ...) -> None: ...

class PrefillReport(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class RequestEvent(_message.Message):
    __slots__ = ("kind", "monotonic_seconds")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MONOTONIC_SECONDS_FIELD_NUMBER: _ClassVar[int]
    kind: RequestEventKind
    monotonic_seconds: float
    def __init__(self, kind: _Optional[_Union[RequestEventKind, str]] = ..., monotonic_seconds: _Optional[float] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason", "stop_token_id", "error")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    stop_token_id: int
    error: _status_pb2.Status
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class SchedulerStats(_message.Message):
    __slots__ = ("running", "waiting", "kv_usage", "prefix_cache_queries", "prefix_cache_hits", "prefix_cache_requests")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_cache_requests: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_usage: _Optional[float] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., prefix_cache_requests: _Optional[int] = ...) -> None: ...
