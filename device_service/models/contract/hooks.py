"""Optional hooks of an adapter: each Protocol is one, recognised by presence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from device_service.models.contract.values import (
    KVLayer,
    KVLayerSpec,
    KVShape,
    TTSamplingParams,
)

# ---------------------------------------------------------------- KV (contract 1.4)


@runtime_checkable
class AllocatesPerLayer(Protocol):
    """Has a KV cache whose layers may differ; preferred over the older method."""

    def allocate_kv_cache_per_layer(self, per_layer_specs: list[KVLayerSpec]) -> Any:
        """One entry per decoder layer, for each submesh. The answer is opaque."""


@runtime_checkable
class AllocatesUniform(Protocol):
    """The older allocation: all layers alike."""

    def allocate_kv_cache(
        self, kv_cache_shape: KVShape, dtype: torch.dtype, num_layers: int
    ) -> Any:
        """The answer is opaque."""


@runtime_checkable
class DescribesKVLayers(Protocol):
    """Knows its KV layout only once it is loaded: ttserve's own extension."""

    def kv_layers(self) -> Sequence[KVLayer]:
        """One entry per layer that keeps keys and values."""


# ---------------------------------------------------------- readback (contract 1.9)


@runtime_checkable
class ReadsDecodeOutput(Protocol):
    """Decodes asynchronously. Both calls come once per decode, in this order,
    and neither samples nor moves a position.
    """

    def read_decode_output(self, tt_out: Any, *, async_read: bool) -> tuple[Any, Any]:
        """Queue the transfer; answers (host_out, read_events).

        Adapters that declare supports_selective_host_readback also take
        `sample_rows: list[int]`, the rows to transfer.
        """

    def process_decode_output_host(self, tt_out: Any, *, is_tokens: bool) -> Any:
        """Turn transferred output into what the driver takes.

        `is_tokens`: the device sampled. Then it answers tokens that reshape to
        [B], or (tokens, logprobs) where a row asked for logprobs, which are [B]
        or a pair (values [B, 32], ids [B, 32]), best first. Else logits
        [B, S, V], or a tuple that begins with them.

        Adapters that declare supports_compact_host_logits also take
        `sample_rows: list[int]` with host sampling and answer [len(rows), 1, V]
        in that order, in memory that the caller may keep and write to.
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
        """Turn transferred output into what `prefill_forward` would answer."""


# ---------------------------------------------------- device grammar (contract 1.11)


@runtime_checkable
class EnablesDeviceGrammar(Protocol):
    """Can mask tokens on the device."""

    device_grammar_enabled: bool

    def enable_device_grammar(self) -> bool:
        """Allocate what masks need and set `device_grammar_enabled`.

        Called once, after loading and before warm-up.
        """


@runtime_checkable
class SamplesDeferred(Protocol):
    """Samples a decode step after its forward, when the mask is there."""

    def sample_decode_on_device(
        self,
        deferred_decode: Any,
        *,
        sampling_params: TTSamplingParams,
        grammar_bitmask: torch.Tensor,
    ) -> Any:
        """Sample what a `decode_forward` with defer_device_sampling answered.

        Called once per such answer. grammar_bitmask int32 [B, ceil(V / 32)]:
        bit t % 32 of word t // 32 allows token t; rows that nothing constrains
        and rows without a request are all ones. Rows are those of the forward.
        """


@runtime_checkable
class PoisonsDeferred(Protocol):
    """Wants to know that a deferred step can never be sampled."""

    def poison_deferred_device_sampling(self) -> None:
        """The step's mask or its sampling failed; the process will end."""


@runtime_checkable
class CapturesDeviceGrammar(Protocol):
    """Captures traces that sample under a mask (contract 1.6)."""

    def prepare_device_grammar_decode_trace_warmup(
        self, *, kv_cache: Any, max_batch_size: int, num_blocks: int
    ) -> bool:
        """Before any trace exists. False leaves structured output to the host."""

    def capture_prepared_device_grammar_decode_trace(self) -> None:
        """After prefill was captured and before decode is."""


# -------------------------------------------------------- life cycle (contract 1.12)


@runtime_checkable
class ReleasesRequests(Protocol):
    """Keeps state per slot beyond the KV cache."""

    def release_request(self, slot: int) -> None:
        """The slot's request finished or was preempted; its row is still its own."""


@runtime_checkable
class ReleasesCaptures(Protocol):
    """Holds traces or other captures that must go before the mesh closes."""

    def release_persistent_capture(self) -> None:
        """Called once, while the mesh is open; nothing is called afterwards."""


# --------------------------------------------------------------------- for metrics


@runtime_checkable
class CountsShapes(Protocol):
    """Runs decode at fixed shapes and counts those that warm-up has not met:
    ttserve's own extension.
    """

    unwarmed_shapes: int
