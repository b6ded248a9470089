"""The model contract: how a mesh's driver calls a model adapter.

Adapters of tt-metal are written against these calls, so names, keywords and
shapes are theirs to rely on. `Adapter` is what every one has; each further
Protocol is one optional hook, recognised by its presence.

Shapes: `n` rows of a prefill, `B` rows of a decode batch, `W` columns of a page
table, `V` vocabulary. Row `r` of a decode batch of `lanes` lanes belongs to
lane r // (B // lanes), and its page table names blocks of that lane's pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class TTSamplingParams:
    """Device sampling parameters: lists with one entry per row (contract 1.5).

    Padding rows: temperature 0.0, top_k 1, top_p 1.0, neutral penalties.
    `num_logprobs` is -2 for none, 0 for the sampled token only.
    """

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    presence_penalty: list[float]
    frequency_penalty: list[float]
    repetition_penalty: list[float]
    seed: list[int | None]
    num_logprobs: list[int]
    enable_log_probs: list[bool]


@dataclass(frozen=True, slots=True)
class KVLayer:
    """What one decoder layer keeps per token: heads * (key + value) elements."""

    num_kv_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    def bytes_per_token(self) -> int:
        """Bytes of one token in this layer."""
        elements = self.num_kv_heads * (self.key_size + self.value_size)
        return elements * self.dtype.itemsize


KVShape = tuple[int, int, int, int]
"""(num_blocks, num_kv_heads_per_device, block_size, head_size)."""


class Adapter(Protocol):
    """A model class; an instance is made by `initialize_vllm_model` only.

    Class attributes that are read: `model_capabilities` (contract 1.13),
    `decode_input_update_contract` (0 unless declared; 1 takes the four reload
    commands) and `tt_supported_decode_batch_sizes` (decode buckets per lane,
    also narrowed on the instance; without it every decode has all rows).
    """

    model_capabilities: Mapping[str, Any]

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: Any,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int,
        optimizations: str | None,
    ) -> Adapter:
        """Load weights. `max_batch_size` is lanes * rows per lane and
        `tt_data_parallel` the lanes. Path and dtype are in `hf_config`.
        """

    def prefill_forward(  # noqa: PLR0913 - not ours to choose
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: Any,
        enable_trace: bool,
        prompt_lens: np.ndarray,
        start_pos: Any,
        empty_slots: list[int],
    ) -> Any:
        """Write the KV of one chunk per row and return the last logits.

        tokens int32 [n, max(prompt_lens)]: only [start_pos, prompt_lens) of a
        row is this step's work, other cells may be stale. page_table int32
        [n, W], padded with 0. prompt_lens int64 [n]: end of the chunk.
        start_pos int32 [n]: tokens computed before. empty_slots: state slot
        (merged row) of each. Returns host logits [n, S, V] or [n, V], or a
        tuple that begins with them.
        """

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: Any,
        enable_trace: bool,
        read_from_device: bool,
    ) -> Any:
        """Advance every row by one token.

        tokens int32 [B, 1], padding 0. start_pos int32 [B], -1 for a row
        without a request. page_table int32 [B, W]; padding rows and unused
        columns are 0, a readable block. Adapters of input contract 1 also get
        reload_inputs, reload_page_table, reload_sampling_params and
        reset_sampling_state. Returns a device handle for `read_decode_output`,
        or host logits [B, S, V] when the adapter has no such method or
        `read_from_device` is True.
        """

    def warmup_model_prefill(
        self, *, kv_cache: Any, enable_trace: bool, can_sample_on_device: bool
    ) -> None:
        """Run, or capture, every prefill shape that will be served."""

    def warmup_model_decode(
        self,
        *,
        kv_cache: Any,
        enable_trace: bool,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
    ) -> None:
        """Run, or capture, every decode shape. `num_blocks` is W, not the pool."""


@runtime_checkable
class AllocatesPerLayer(Protocol):
    """Has a KV cache whose layers may differ; preferred over the older method."""

    def allocate_kv_cache_per_layer(
        self, per_layer_specs: list[tuple[KVShape, torch.dtype, int]]
    ) -> Any:
        """One (shape, dtype, tensor_idx) per decoder layer, for each submesh;
        equal tensor_idx share a buffer. The answer is opaque.
        """


@runtime_checkable
class AllocatesUniform(Protocol):
    """The older allocation: all layers alike."""

    def allocate_kv_cache(
        self, kv_cache_shape: KVShape, dtype: torch.dtype, num_layers: int
    ) -> Any:
        """The answer is opaque."""


@runtime_checkable
class ReadsDecodeOutput(Protocol):
    """Decodes asynchronously (contract 1.9)."""

    def read_decode_output(self, tt_out: Any, *, async_read: bool) -> tuple[Any, Any]:
        """Queue the transfer; answers (host_out, read_events)."""

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool) -> Any:
        """Turn transferred output into a tensor, or a tuple that begins with it.

        Adapters that declare supports_compact_host_logits also take
        `sample_rows: list[int]` and answer [len(rows), 1, V] in that order, in
        memory that the caller may keep and write to.
        """


@runtime_checkable
class ReadsPrefillOutput(Protocol):
    """Prefills asynchronously: ttserve's own extension of the contract.

    `prefill_forward` of such an adapter takes `read_from_device` as decode
    does; with False it answers a handle. Adapters without it block.
    """

    def read_prefill_output(self, tt_out: Any, *, async_read: bool) -> tuple[Any, Any]:
        """Queue the transfer; answers (host_out, read_events)."""

    def process_prefill_output_host(self, tt_out: Any, *, is_tokens: bool) -> Any:
        """Turn transferred output into logits [n, S, V]."""


@runtime_checkable
class DescribesKVLayers(Protocol):
    """Knows its KV layout only once it is loaded: ttserve's own extension."""

    def kv_layers(self) -> Sequence[KVLayer]:
        """One entry per layer that keeps keys and values."""


@runtime_checkable
class ReleasesRequests(Protocol):
    """Keeps state per slot beyond the KV cache."""

    def release_request(self, slot: int) -> None:
        """The slot's request finished or was preempted."""


@runtime_checkable
class ReleasesCaptures(Protocol):
    """Holds traces or other captures that must go before the mesh closes."""

    def release_persistent_capture(self) -> None:
        """Called once, while the mesh is open."""
