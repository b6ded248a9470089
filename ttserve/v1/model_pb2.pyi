from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Model(_message.Message):
    __slots__ = ("served_names", "architecture", "max_sequence_tokens", "vocab_size", "dtype", "limits", "scheduling", "kv_cache", "capabilities", "settings", "generation_defaults_json", "fingerprint", "mesh", "vllm_version", "eos_token_ids")
    SERVED_NAMES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_DEFAULTS_JSON_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MESH_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    served_names: _containers.RepeatedScalarFieldContainer[str]
    architecture: str
    max_sequence_tokens: int
    vocab_size: int
    dtype: str
    limits: RequestLimits
    scheduling: SchedulingInfo
    kv_cache: KvCacheInfo
    capabilities: Capabilities
    settings: SharedSettings
    generation_defaults_json: str
    fingerprint: str
    mesh: MeshInfo
    vllm_version: str
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, served_names: _Optional[_Iterable[str]] = ..., architecture: _Optional[str] = ..., max_sequence_tokens: _Optional[int] = ..., vocab_size: _Optional[int] = ..., dtype: _Optional[str] = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ..., scheduling: _Optional[_Union[SchedulingInfo, _Mapping]] = ..., kv_cache: _Optional[_Union[KvCacheInfo, _Mapping]] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ..., settings: _Optional[_Union[SharedSettings, _Mapping]] = ..., generation_defaults_json: _Optional[str] = ..., fingerprint: _Optional[str] = ..., mesh: _Optional[_Union[MeshInfo, _Mapping]] = ..., vllm_version: _Optional[str] = ..., eos_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("max_logprobs", "max_queued_requests", "max_submission_bytes", "max_grammar_bytes")
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBMISSION_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAMMAR_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_logprobs: int
    max_queued_requests: int
    max_submission_bytes: int
    max_grammar_bytes: int
    def __init__(self, max_logprobs: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., max_submission_bytes: _Optional[int] = ..., max_grammar_bytes: _Optional[int] = ...) -> None: ...

class SchedulingInfo(_message.Message):
    __slots__ = ("lanes", "rows_per_lane", "max_batched_tokens", "policy", "chunked_prefill", "async_decode")
    LANES_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_LANE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    ASYNC_DECODE_FIELD_NUMBER: _ClassVar[int]
    lanes: int
    rows_per_lane: int
    max_batched_tokens: int
    policy: str
    chunked_prefill: bool
    async_decode: bool
    def __init__(self, lanes: _Optional[int] = ..., rows_per_lane: _Optional[int] = ..., max_batched_tokens: _Optional[int] = ..., policy: _Optional[str] = ..., chunked_prefill: _Optional[bool] = ..., async_decode: _Optional[bool] = ...) -> None: ...

class KvCacheInfo(_message.Message):
    __slots__ = ("num_blocks", "block_size", "prefix_caching")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    block_size: int
    prefix_caching: bool
    def __init__(self, num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., prefix_caching: _Optional[bool] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("chunked_prefill", "prefix_caching", "sample_on_device", "async_decode", "device_grammar", "device_penalties", "max_device_top_k", "output_tokens_per_step")
    CHUNKED_PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_ON_DEVICE_FIELD_NUMBER: _ClassVar[int]
    ASYNC_DECODE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVICE_TOP_K_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    chunked_prefill: bool
    prefix_caching: bool
    sample_on_device: bool
    async_decode: bool
    device_grammar: bool
    device_penalties: bool
    max_device_top_k: int
    output_tokens_per_step: int
    def __init__(self, chunked_prefill: _Optional[bool] = ..., prefix_caching: _Optional[bool] = ..., sample_on_device: _Optional[bool] = ..., async_decode: _Optional[bool] = ..., device_grammar: _Optional[bool] = ..., device_penalties: _Optional[bool] = ..., max_device_top_k: _Optional[int] = ..., output_tokens_per_step: _Optional[int] = ...) -> None: ...

class SharedSettings(_message.Message):
    __slots__ = ("structured_output_backend", "disable_any_whitespace", "disable_additional_properties", "reasoning_parser", "logprobs_mode", "tokenizer_mode", "trust_remote_code", "structured_output_in_reasoning", "mm_limits_json")
    STRUCTURED_OUTPUT_BACKEND_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ANY_WHITESPACE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_ADDITIONAL_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    REASONING_PARSER_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_MODE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_MODE_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_IN_REASONING_FIELD_NUMBER: _ClassVar[int]
    MM_LIMITS_JSON_FIELD_NUMBER: _ClassVar[int]
    structured_output_backend: str
    disable_any_whitespace: bool
    disable_additional_properties: bool
    reasoning_parser: str
    logprobs_mode: str
    tokenizer_mode: str
    trust_remote_code: bool
    structured_output_in_reasoning: bool
    mm_limits_json: str
    def __init__(self, structured_output_backend: _Optional[str] = ..., disable_any_whitespace: _Optional[bool] = ..., disable_additional_properties: _Optional[bool] = ..., reasoning_parser: _Optional[str] = ..., logprobs_mode: _Optional[str] = ..., tokenizer_mode: _Optional[str] = ..., trust_remote_code: _Optional[bool] = ..., structured_output_in_reasoning: _Optional[bool] = ..., mm_limits_json: _Optional[str] = ...) -> None: ...

class MeshInfo(_message.Message):
    __slots__ = ("kind", "rows", "columns")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    rows: int
    columns: int
    def __init__(self, kind: _Optional[str] = ..., rows: _Optional[int] = ..., columns: _Optional[int] = ...) -> None: ...
