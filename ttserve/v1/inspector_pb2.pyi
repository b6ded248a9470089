from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WaitingReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING_REASON_UNSPECIFIED: _ClassVar[WaitingReason]
    WAITING_REASON_CAPACITY: _ClassVar[WaitingReason]
    WAITING_REASON_GRAMMAR: _ClassVar[WaitingReason]
    WAITING_REASON_PREEMPTED: _ClassVar[WaitingReason]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_PREFILL: _ClassVar[Phase]
    PHASE_DECODE: _ClassVar[Phase]

class SamplingSite(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLING_SITE_UNSPECIFIED: _ClassVar[SamplingSite]
    SAMPLING_SITE_DEVICE: _ClassVar[SamplingSite]
    SAMPLING_SITE_HOST: _ClassVar[SamplingSite]
    SAMPLING_SITE_NONE: _ClassVar[SamplingSite]
WAITING_REASON_UNSPECIFIED: WaitingReason
WAITING_REASON_CAPACITY: WaitingReason
WAITING_REASON_GRAMMAR: WaitingReason
WAITING_REASON_PREEMPTED: WaitingReason
PHASE_UNSPECIFIED: Phase
PHASE_PREFILL: Phase
PHASE_DECODE: Phase
SAMPLING_SITE_UNSPECIFIED: SamplingSite
SAMPLING_SITE_DEVICE: SamplingSite
SAMPLING_SITE_HOST: SamplingSite
SAMPLING_SITE_NONE: SamplingSite

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStateResponse(_message.Message):
    __slots__ = ("instance_id", "step_number", "paused", "lanes", "sessions", "steps_in_flight", "grammars", "engine_silence_ms", "served_names", "uptime_seconds")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    GRAMMARS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SILENCE_MS_FIELD_NUMBER: _ClassVar[int]
    SERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    step_number: int
    paused: bool
    lanes: _containers.RepeatedCompositeFieldContainer[LaneState]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionState]
    steps_in_flight: int
    grammars: int
    engine_silence_ms: int
    served_names: _containers.RepeatedScalarFieldContainer[str]
    uptime_seconds: float
    def __init__(self, instance_id: _Optional[str] = ..., step_number: _Optional[int] = ..., paused: _Optional[bool] = ..., lanes: _Optional[_Iterable[_Union[LaneState, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionState, _Mapping]]] = ..., steps_in_flight: _Optional[int] = ..., grammars: _Optional[int] = ..., engine_silence_ms: _Optional[int] = ..., served_names: _Optional[_Iterable[str]] = ..., uptime_seconds: _Optional[float] = ...) -> None: ...

class LaneState(_message.Message):
    __slots__ = ("lane", "rows", "waiting", "total_blocks", "free_blocks", "total_rows")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    rows: _containers.RepeatedCompositeFieldContainer[RowState]
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingState]
    total_blocks: int
    free_blocks: int
    total_rows: int
    def __init__(self, lane: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[RowState, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[WaitingState, _Mapping]]] = ..., total_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., total_rows: _Optional[int] = ...) -> None: ...

class RowState(_message.Message):
    __slots__ = ("row", "request_id", "session_number", "prompt_tokens", "output_tokens", "computed_tokens", "blocks", "preemptions", "external_request_id")
    ROW_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    row: int
    request_id: str
    session_number: int
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    blocks: int
    preemptions: int
    external_request_id: str
    def __init__(self, row: _Optional[int] = ..., request_id: _Optional[str] = ..., session_number: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., preemptions: _Optional[int] = ..., external_request_id: _Optional[str] = ...) -> None: ...

class WaitingState(_message.Message):
    __slots__ = ("request_id", "session_number", "prompt_tokens", "reason", "waited_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    session_number: int
    prompt_tokens: int
    reason: WaitingReason
    waited_ms: int
    def __init__(self, request_id: _Optional[str] = ..., session_number: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., reason: _Optional[_Union[WaitingReason, str]] = ..., waited_ms: _Optional[int] = ...) -> None: ...

class SessionState(_message.Message):
    __slots__ = ("session_number", "frontend_name", "peer", "live_requests", "merged_steps", "age_seconds")
    SESSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    FRONTEND_NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MERGED_STEPS_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    session_number: int
    frontend_name: str
    peer: str
    live_requests: int
    merged_steps: int
    age_seconds: float
    def __init__(self, session_number: _Optional[int] = ..., frontend_name: _Optional[str] = ..., peer: _Optional[str] = ..., live_requests: _Optional[int] = ..., merged_steps: _Optional[int] = ..., age_seconds: _Optional[float] = ...) -> None: ...

class ListStepsRequest(_message.Message):
    __slots__ = ("limit", "filter")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    limit: int
    filter: StepFilter
    def __init__(self, limit: _Optional[int] = ..., filter: _Optional[_Union[StepFilter, _Mapping]] = ...) -> None: ...

class ListStepsResponse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepRecord]
    def __init__(self, steps: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ...) -> None: ...

class WatchStepsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: StepFilter
    def __init__(self, filter: _Optional[_Union[StepFilter, _Mapping]] = ...) -> None: ...

class WatchStepsResponse(_message.Message):
    __slots__ = ("step", "lost_steps")
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOST_STEPS_FIELD_NUMBER: _ClassVar[int]
    step: StepRecord
    lost_steps: int
    def __init__(self, step: _Optional[_Union[StepRecord, _Mapping]] = ..., lost_steps: _Optional[int] = ...) -> None: ...

class StepFilter(_message.Message):
    __slots__ = ("phase", "lane", "request_id")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    lane: int
    request_id: str
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., lane: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class StepRecord(_message.Message):
    __slots__ = ("number", "phase", "lanes", "scheduled_tokens", "produced_tokens", "sampling_site", "sampling_reason", "overlapped", "overlap_reason", "preempted_request_ids", "host_us", "device_us", "readback_us", "host_gap_us", "unix_seconds", "padded_rows", "error", "waiting_requests", "phase_reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_SITE_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_REASON_FIELD_NUMBER: _ClassVar[int]
    OVERLAPPED_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_REASON_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    HOST_US_FIELD_NUMBER: _ClassVar[int]
    DEVICE_US_FIELD_NUMBER: _ClassVar[int]
    READBACK_US_FIELD_NUMBER: _ClassVar[int]
    HOST_GAP_US_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PADDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PHASE_REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    phase: Phase
    lanes: _containers.RepeatedCompositeFieldContainer[LaneRecord]
    scheduled_tokens: int
    produced_tokens: int
    sampling_site: SamplingSite
    sampling_reason: str
    overlapped: bool
    overlap_reason: str
    preempted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    host_us: int
    device_us: int
    readback_us: int
    host_gap_us: int
    unix_seconds: float
    padded_rows: int
    error: str
    waiting_requests: int
    phase_reason: str
    def __init__(self, number: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., lanes: _Optional[_Iterable[_Union[LaneRecord, _Mapping]]] = ..., scheduled_tokens: _Optional[int] = ..., produced_tokens: _Optional[int] = ..., sampling_site: _Optional[_Union[SamplingSite, str]] = ..., sampling_reason: _Optional[str] = ..., overlapped: _Optional[bool] = ..., overlap_reason: _Optional[str] = ..., preempted_request_ids: _Optional[_Iterable[str]] = ..., host_us: _Optional[int] = ..., device_us: _Optional[int] = ..., readback_us: _Optional[int] = ..., host_gap_us: _Optional[int] = ..., unix_seconds: _Optional[float] = ..., padded_rows: _Optional[int] = ..., error: _Optional[str] = ..., waiting_requests: _Optional[int] = ..., phase_reason: _Optional[str] = ...) -> None: ...

class LaneRecord(_message.Message):
    __slots__ = ("lane", "rows", "used_blocks", "free_blocks")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    USED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    used_blocks: int
    free_blocks: int
    def __init__(self, lane: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ..., used_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("row", "request_id", "start_position", "tokens", "intermediate_chunk", "produced_tokens", "finish_reason", "external_request_id")
    ROW_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_CHUNK_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    row: int
    request_id: str
    start_position: int
    tokens: int
    intermediate_chunk: bool
    produced_tokens: int
    finish_reason: str
    external_request_id: str
    def __init__(self, row: _Optional[int] = ..., request_id: _Optional[str] = ..., start_position: _Optional[int] = ..., tokens: _Optional[int] = ..., intermediate_chunk: _Optional[bool] = ..., produced_tokens: _Optional[int] = ..., finish_reason: _Optional[str] = ..., external_request_id: _Optional[str] = ...) -> None: ...

class DumpRecordingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DumpRecordingResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("step_number",)
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    step_number: int
    def __init__(self, step_number: _Optional[int] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("steps", "steps_run")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_RUN_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepRecord]
    steps_run: int
    def __init__(self, steps: _Optional[_Iterable[_Union[StepRecord, _Mapping]]] = ..., steps_run: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ("preempt_running",)
    PREEMPT_RUNNING_FIELD_NUMBER: _ClassVar[int]
    preempt_running: bool
    def __init__(self, preempt_running: _Optional[bool] = ...) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("reset",)
    RESET_FIELD_NUMBER: _ClassVar[int]
    reset: bool
    def __init__(self, reset: _Optional[bool] = ...) -> None: ...
