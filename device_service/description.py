"""What the loaded model is and can do, as domain records.

The start-up code fills `ModelDescription` once the limits are known; the codec
turns it into the protocol's `Model`, admission checks with it. Field by field
it mirrors `ttserve.v1.Model`: units and meanings are documented there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What requests may ask for. Bytes and counts."""

    max_logprobs: int = 20
    max_queued_requests: int = 128
    max_submission_bytes: int = 8 << 20
    max_grammar_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True)
class SchedulingInfo:
    """How requests are scheduled; rows and batched tokens are per lane."""

    lanes: int
    rows_per_lane: int
    max_batched_tokens: int
    policy: str
    chunked_prefill: bool
    async_decode: bool

    @property
    def total_rows(self) -> int:
        """Requests that can run at a time, all lanes together."""
        return self.lanes * self.rows_per_lane


@dataclass(frozen=True, slots=True)
class KvCacheInfo:
    """KV cache of one lane; `num_blocks` includes the null block."""

    num_blocks: int
    block_size: int
    prefix_caching: bool

    @property
    def usable_tokens(self) -> int:
        """Tokens that one lane can hold."""
        return (self.num_blocks - 1) * self.block_size


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the model adapter declares (its `model_capabilities`)."""

    chunked_prefill: bool = False
    prefix_caching: bool = False
    sample_on_device: bool = False
    async_decode: bool = False
    device_grammar: bool = False
    device_penalties: bool = False
    max_device_top_k: int | None = None
    output_tokens_per_step: int = 1


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings that the device service owns and frontends follow.

    `mm_limits` maps a modality to the items that a prompt may hold.
    """

    structured_output_backend: str = "xgrammar"
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    logprobs_mode: str = "raw_logprobs"
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False
    structured_output_in_reasoning: bool = False
    mm_limits: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class MeshInfo:
    """The mesh that runs the model; `kind` is "cpu", "sim" or "ttnn"."""

    kind: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Everything that `GetModel` answers; constant for the process's life.

    `generation_defaults` are sampling values under vLLM's names (`temperature`,
    `top_p`, `top_k`, `min_p`, `repetition_penalty`, `max_tokens`), what vLLM's
    `ModelConfig.get_diff_sampling_param()` returns. `eos_token_ids` are the
    model's end-of-sequence ids, the tokenizer's own first: `Generate` stops at
    them, frontends know them from the tokenizer and the generation config.
    """

    served_names: tuple[str, ...]
    architecture: str
    max_sequence_tokens: int
    vocab_size: int
    dtype: str
    limits: RequestLimits
    scheduling: SchedulingInfo
    kv_cache: KvCacheInfo
    capabilities: Capabilities
    settings: SharedSettings
    generation_defaults: Mapping[str, Any]
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    mesh: MeshInfo
    vllm_version: str
