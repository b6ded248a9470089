"""The keywords of the calls that an adapter gets (contract 1.6 to 1.8).

Every call is made with keywords only. The keys of a class with `total=False` are
left out where their conditions do not hold, so an adapter that does not declare
what a condition needs need not take them. Not sent at all, since what they are for is
not served yet: `pixel_values` and `image_grid_thw` (images),
`rope_deltas_all_users` (request-specific RoPE), `spec_mode` and its companions
(speculation).
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import numpy as np
import torch

from device_service.models.contract.values import TTSamplingParams


class WarmUpPrefillCall(TypedDict):
    """Of `warmup_model_prefill`."""

    kv_cache: Any
    enable_trace: bool
    can_sample_on_device: bool


class AlwaysOfWarmUpDecode(TypedDict):
    """What comes with every call of `warmup_model_decode`."""

    kv_cache: Any
    enable_trace: bool
    max_batch_size: int
    num_blocks: int
    can_sample_on_device: bool


class WarmUpDecodeCall(AlwaysOfWarmUpDecode, total=False):
    """Of `warmup_model_decode`.

    max_batch_size: rows of all lanes. num_blocks: W, not the pool's blocks. The
    last two come only where device grammar is enabled.
    """

    can_sample_device_grammar: bool
    sampling_trace_variants_prepared: bool


class AlwaysOfPrefill(TypedDict):
    """What comes with every call of `prefill_forward`."""

    tokens: torch.Tensor
    page_table: torch.Tensor
    kv_cache: Any
    enable_trace: bool
    prompt_lens: np.ndarray
    start_pos: np.ndarray | torch.Tensor
    empty_slots: list[int]


class PrefillCall(AlwaysOfPrefill, total=False):
    """Of `prefill_forward`, one chunk or prompt for each of `n` rows.

    tokens int32 [n, max(prompt_lens)], from position 0: only [start_pos,
    prompt_lens) of a row is this step's work, other cells may be stale.
    page_table int32 [n, W], padded with 0. prompt_lens int64 [n], numpy: where
    the chunk ends. start_pos int32 [n], numpy with one lane and torch with
    several: tokens computed before. empty_slots: state slot, which is the
    merged row, of each. enable_trace: trace mode `all`.

    sampling_params, `n` entries each, where this prefill samples on the device.
    read_from_device, False, only where the adapter has `read_prefill_output`.
    page_tables_per_layer, only with several KV groups: for each layer the table of
    its group, int32 [rows of all lanes, W], the call's rows first and 0 below them.
    """

    page_tables_per_layer: list[torch.Tensor]
    sampling_params: TTSamplingParams
    read_from_device: bool


class AlwaysOfDecode(TypedDict):
    """What comes with every call of `decode_forward`."""

    tokens: torch.Tensor
    start_pos: torch.Tensor
    page_table: torch.Tensor
    kv_cache: Any
    enable_trace: bool
    read_from_device: bool


class DecodeCall(AlwaysOfDecode, total=False):
    """Of `decode_forward`, one token for each of `B` rows.

    tokens int32 [B, 1], 0 in a row without a request. start_pos int32 [B], -1
    in such a row. page_table int32 [B, W]: unused columns and such rows are 0,
    a block that may be read, never -1. enable_trace: trace mode `all` or
    `decode_only`. read_from_device is False: what comes back is read by
    `read_decode_output`, or is host tensors already where there is none.

    sampling_params, `B` entries each, where this step samples on the device.
    prompt_tokens and output_tokens int32 [rows, L], padded with -1, beside them
    where a request has a penalty. slot_remap int32 [rows], with several lanes
    only and always the identity. reset_batch where the input contract is 0 and
    the device samples; the four reload commands on every call where it is 1 or
    more (contract 1.10, `device_service.decode.reload`).
    defer_device_sampling, instead of sampling_params, where a mask has to come
    before the device samples (contract 1.11). page_tables_per_layer as in prefill.
    """

    page_tables_per_layer: list[torch.Tensor]
    sampling_params: TTSamplingParams
    prompt_tokens: torch.Tensor
    output_tokens: torch.Tensor
    slot_remap: torch.Tensor
    reset_batch: bool
    reload_inputs: bool
    reload_page_table: bool
    reload_sampling_params: bool
    reset_sampling_state: bool
    defer_device_sampling: Literal[True]
