from ttserve.v1 import inspector_pb2 as _inspector_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordingEntry(_message.Message):
    __slots__ = ("header", "picture", "event", "step", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PICTURE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: RecordingHeader
    picture: EnginePicture
    event: RecordedEvent
    step: _inspector_pb2.StepRecord
    end: RecordingEnd
    def __init__(self, header: _Optional[_Union[RecordingHeader, _Mapping]] = ..., picture: _Optional[_Union[EnginePicture, _Mapping]] = ..., event: _Optional[_Union[RecordedEvent, _Mapping]] = ..., step: _Optional[_Union[_inspector_pb2.StepRecord, _Mapping]] = ..., end: _Optional[_Union[RecordingEnd, _Mapping]] = ...) -> None: ...

class RecordingHeader(_message.Message):
    __slots__ = ("format", "ttserve_version", "reason", "unix_seconds", "setup")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    TTSERVE_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    format: int
    ttserve_version: str
    reason: str
    unix_seconds: float
    setup: RecordedSetup
    def __init__(self, format: _Optional[int] = ..., ttserve_version: _Optional[str] = ..., reason: _Optional[str] = ..., unix_seconds: _Optional[float] = ..., setup: _Optional[_Union[RecordedSetup, _Mapping]] = ...) -> None: ...

class RecordedSetup(_message.Message):
    __slots__ = ("lanes", "rows_per_lane", "num_blocks", "groups", "block_size", "max_model_len", "max_batched_tokens", "long_prefill_threshold", "chunked_prefill", "by_priority", "asynchronous", "resident_inputs", "prefix_cache", "reserve_full_prompt", "watermark", "interleave_enabled", "interleave_prefill_steps", "interleave_decode_steps", "site")
    LANES_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_LANE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LONG_PREFILL_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ASYNCHRONOUS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_INPUTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FULL_PROMPT_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_ENABLED_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_PREFILL_STEPS_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVE_DECODE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    lanes: int
    rows_per_lane: int
    num_blocks: int
    groups: _containers.RepeatedCompositeFieldContainer[RecordedKvGroup]
    block_size: int
    max_model_len: int
    max_batched_tokens: int
    long_prefill_threshold: int
    chunked_prefill: bool
    by_priority: bool
    asynchronous: bool
    resident_inputs: bool
    prefix_cache: bool
    reserve_full_prompt: bool
    watermark: float
    interleave_enabled: bool
    interleave_prefill_steps: int
    interleave_decode_steps: int
    site: RecordedSitePolicy
    def __init__(self, lanes: _Optional[int] = ..., rows_per_lane: _Optional[int] = ..., num_blocks: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[RecordedKvGroup, _Mapping]]] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_batched_tokens: _Optional[int] = ..., long_prefill_threshold: _Optional[int] = ..., chunked_prefill: _Optional[bool] = ..., by_priority: _Optional[bool] = ..., asynchronous: _Optional[bool] = ..., resident_inputs: _Optional[bool] = ..., prefix_cache: _Optional[bool] = ..., reserve_full_prompt: _Optional[bool] = ..., watermark: _Optional[float] = ..., interleave_enabled: _Optional[bool] = ..., interleave_prefill_steps: _Optional[int] = ..., interleave_decode_steps: _Optional[int] = ..., site: _Optional[_Union[RecordedSitePolicy, _Mapping]] = ...) -> None: ...

class RecordedKvGroup(_message.Message):
    __slots__ = ("block_size", "window", "other_kind")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    OTHER_KIND_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    window: int
    other_kind: bool
    def __init__(self, block_size: _Optional[int] = ..., window: _Optional[int] = ..., other_kind: _Optional[bool] = ...) -> None: ...

class RecordedSitePolicy(_message.Message):
    __slots__ = ("vocab_size", "mode", "max_device_top_k", "device_penalties", "device_grammar", "top_logprobs", "raw_logprobs", "devices", "custom_processors", "seeded_on_host")
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVICE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RAW_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    SEEDED_ON_HOST_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    mode: str
    max_device_top_k: int
    device_penalties: bool
    device_grammar: bool
    top_logprobs: bool
    raw_logprobs: bool
    devices: int
    custom_processors: bool
    seeded_on_host: bool
    def __init__(self, vocab_size: _Optional[int] = ..., mode: _Optional[str] = ..., max_device_top_k: _Optional[int] = ..., device_penalties: _Optional[bool] = ..., device_grammar: _Optional[bool] = ..., top_logprobs: _Optional[bool] = ..., raw_logprobs: _Optional[bool] = ..., devices: _Optional[int] = ..., custom_processors: _Optional[bool] = ..., seeded_on_host: _Optional[bool] = ...) -> None: ...

class RecordedRequest(_message.Message):
    __slots__ = ("request_id", "external_request_id", "session_number", "prompt_tokens", "max_tokens", "priority", "awaits_grammar", "skip_prefix_cache", "blocks", "sampling")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    AWAITS_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    SKIP_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    external_request_id: str
    session_number: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    awaits_grammar: bool
    skip_prefix_cache: bool
    blocks: _containers.RepeatedScalarFieldContainer[int]
    sampling: RecordedSampling
    def __init__(self, request_id: _Optional[str] = ..., external_request_id: _Optional[str] = ..., session_number: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., awaits_grammar: _Optional[bool] = ..., skip_prefix_cache: _Optional[bool] = ..., blocks: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[RecordedSampling, _Mapping]] = ...) -> None: ...

class RecordedSampling(_message.Message):
    __slots__ = ("greedy", "top_k", "seeded", "num_logprobs", "host_only", "min_tokens", "penalised", "structured")
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    HOST_ONLY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PENALISED_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    greedy: bool
    top_k: int
    seeded: bool
    num_logprobs: int
    host_only: str
    min_tokens: int
    penalised: bool
    structured: bool
    def __init__(self, greedy: _Optional[bool] = ..., top_k: _Optional[int] = ..., seeded: _Optional[bool] = ..., num_logprobs: _Optional[int] = ..., host_only: _Optional[str] = ..., min_tokens: _Optional[int] = ..., penalised: _Optional[bool] = ..., structured: _Optional[bool] = ...) -> None: ...

class EnginePicture(_message.Message):
    __slots__ = ("look", "step_number", "arrivals", "prefill_run", "decode_run", "paused", "steps_allowed", "failed_in_a_row", "sequences", "lanes")
    LOOK_FIELD_NUMBER: _ClassVar[int]
    STEP_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_RUN_FIELD_NUMBER: _ClassVar[int]
    DECODE_RUN_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    STEPS_ALLOWED_FIELD_NUMBER: _ClassVar[int]
    FAILED_IN_A_ROW_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    look: int
    step_number: int
    arrivals: int
    prefill_run: int
    decode_run: int
    paused: bool
    steps_allowed: int
    failed_in_a_row: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequencePicture]
    lanes: _containers.RepeatedCompositeFieldContainer[LanePicture]
    def __init__(self, look: _Optional[int] = ..., step_number: _Optional[int] = ..., arrivals: _Optional[int] = ..., prefill_run: _Optional[int] = ..., decode_run: _Optional[int] = ..., paused: _Optional[bool] = ..., steps_allowed: _Optional[int] = ..., failed_in_a_row: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequencePicture, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[LanePicture, _Mapping]]] = ...) -> None: ...

class SequencePicture(_message.Message):
    __slots__ = ("request", "lane", "row", "priority", "arrival", "output_tokens", "computed_tokens", "prefilling", "preempted", "preemptions", "shared_prefix_boundary", "published_blocks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILLING_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PREFIX_BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request: RecordedRequest
    lane: int
    row: int
    priority: int
    arrival: int
    output_tokens: int
    computed_tokens: int
    prefilling: bool
    preempted: bool
    preemptions: int
    shared_prefix_boundary: int
    published_blocks: int
    def __init__(self, request: _Optional[_Union[RecordedRequest, _Mapping]] = ..., lane: _Optional[int] = ..., row: _Optional[int] = ..., priority: _Optional[int] = ..., arrival: _Optional[int] = ..., output_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., prefilling: _Optional[bool] = ..., preempted: _Optional[bool] = ..., preemptions: _Optional[int] = ..., shared_prefix_boundary: _Optional[int] = ..., published_blocks: _Optional[int] = ...) -> None: ...

class LanePicture(_message.Message):
    __slots__ = ("free", "cached_contents", "cached_groups", "cached_blocks", "held", "preempted_request_ids")
    FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_CONTENTS_FIELD_NUMBER: _ClassVar[int]
    CACHED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    free: _containers.RepeatedScalarFieldContainer[int]
    cached_contents: _containers.RepeatedScalarFieldContainer[int]
    cached_groups: _containers.RepeatedScalarFieldContainer[int]
    cached_blocks: _containers.RepeatedScalarFieldContainer[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldBlocks]
    preempted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, free: _Optional[_Iterable[int]] = ..., cached_contents: _Optional[_Iterable[int]] = ..., cached_groups: _Optional[_Iterable[int]] = ..., cached_blocks: _Optional[_Iterable[int]] = ..., held: _Optional[_Iterable[_Union[HeldBlocks, _Mapping]]] = ..., preempted_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldBlocks(_message.Message):
    __slots__ = ("request_id", "groups")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    groups: _containers.RepeatedCompositeFieldContainer[HeldGroup]
    def __init__(self, request_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[HeldGroup, _Mapping]]] = ...) -> None: ...

class HeldGroup(_message.Message):
    __slots__ = ("blocks", "published")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    published: int
    def __init__(self, blocks: _Optional[_Iterable[int]] = ..., published: _Optional[int] = ...) -> None: ...

class RecordedEvent(_message.Message):
    __slots__ = ("look", "unix_seconds", "arrivals", "grammar", "abort", "pause", "steps", "resume", "reset", "stop")
    LOOK_FIELD_NUMBER: _ClassVar[int]
    UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    look: int
    unix_seconds: float
    arrivals: RecordedArrivals
    grammar: RecordedGrammar
    abort: RecordedAbort
    pause: RecordedPause
    steps: RecordedSteps
    resume: RecordedResume
    reset: RecordedReset
    stop: RecordedStop
    def __init__(self, look: _Optional[int] = ..., unix_seconds: _Optional[float] = ..., arrivals: _Optional[_Union[RecordedArrivals, _Mapping]] = ..., grammar: _Optional[_Union[RecordedGrammar, _Mapping]] = ..., abort: _Optional[_Union[RecordedAbort, _Mapping]] = ..., pause: _Optional[_Union[RecordedPause, _Mapping]] = ..., steps: _Optional[_Union[RecordedSteps, _Mapping]] = ..., resume: _Optional[_Union[RecordedResume, _Mapping]] = ..., reset: _Optional[_Union[RecordedReset, _Mapping]] = ..., stop: _Optional[_Union[RecordedStop, _Mapping]] = ...) -> None: ...

class RecordedArrivals(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RecordedRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[RecordedRequest, _Mapping]]] = ...) -> None: ...

class RecordedGrammar(_message.Message):
    __slots__ = ("request_id", "failed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    failed: bool
    def __init__(self, request_id: _Optional[str] = ..., failed: _Optional[bool] = ...) -> None: ...

class RecordedAbort(_message.Message):
    __slots__ = ("request_ids", "cause")
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    cause: str
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ..., cause: _Optional[str] = ...) -> None: ...

class RecordedPause(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordedSteps(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class RecordedResume(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordedReset(_message.Message):
    __slots__ = ("preempt_running",)
    PREEMPT_RUNNING_FIELD_NUMBER: _ClassVar[int]
    preempt_running: bool
    def __init__(self, preempt_running: _Optional[bool] = ...) -> None: ...

class RecordedStop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordingEnd(_message.Message):
    __slots__ = ("look", "error", "poisoned")
    LOOK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    POISONED_FIELD_NUMBER: _ClassVar[int]
    look: int
    error: str
    poisoned: bool
    def __init__(self, look: _Optional[int] = ..., error: _Optional[str] = ..., poisoned: _Optional[bool] = ...) -> None: ...
