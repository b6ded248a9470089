"""What every adapter has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Unpack

from device_service.models.contract.calls import (
    DecodeCall,
    PrefillCall,
    WarmUpDecodeCall,
    WarmUpPrefillCall,
)


class Adapter(Protocol):
    """A model class; an instance is made by `initialize_vllm_model` only.

    Read from the class before there is an instance: `model_capabilities`
    (contract 1.13, `device_service.models.capabilities`), `get_max_tokens_all_
    users` if it has one (contract 1.2, 2.13), `_HYBRID_KV_CACHE_GROUPS_ENABLED`
    and `decode_input_update_contract` (0 unless declared; 1 takes the four
    reload commands). Read from the instance: `tt_supported_decode_batch_sizes`
    (decode buckets per lane; without it every decode has all rows), and
    `already_warmed_up_prefill`, set to False between warm-ups if it exists.

    All calls come from one thread, the engine's, but for those of start-up.
    """

    @property
    def model_capabilities(self) -> Mapping[str, Any]:
        """An attribute of the class; absent means {}."""

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

    def warmup_model_prefill(self, **call: Unpack[WarmUpPrefillCall]) -> None:
        """Run, or capture, every prefill shape that will be served."""

    def warmup_model_decode(self, **call: Unpack[WarmUpDecodeCall]) -> None:
        """Run, or capture, every decode shape that will be served."""

    def prefill_forward(self, **call: Unpack[PrefillCall]) -> Any:
        """Write the KV of one chunk per row and answer for its last position.

        Sampling on the host: logits [n, S, V] or [n, V], or a tuple that begins
        with them. Sampling on the device: tokens that reshape to [n], or a pair
        with the logprobs where a row asked for them.
        """

    def decode_forward(self, **call: Unpack[DecodeCall]) -> Any:
        """Advance every row by one token.

        Answers a handle for `read_decode_output`; an adapter without that
        method answers what reading would have given: logits [B, S, V], or
        tokens that reshape to [B].
        """
