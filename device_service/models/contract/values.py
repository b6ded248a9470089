"""What travels in the calls of the model contract."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NO_LOGPROBS = -2
"""`num_logprobs` of a row that wants none; 0 is the sampled token's alone."""


@dataclass(frozen=True, slots=True)
class TTSamplingParams:
    """How a device step samples: lists with one entry per row (contract 1.5).

    A row without a request has temperature 0.0, top_k 1, top_p 1.0, neutral
    penalties, no seed and no logprobs. `top_k` is at most the vocabulary, which
    is what an unset one becomes; where it is 1, `top_p` is 0.0. `seed` is a
    signed 64-bit number or None. `num_logprobs` is NO_LOGPROBS, 0 for the
    sampled token only, or n for the n best; `enable_log_probs` says whether it
    is at least 0.
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

KVLayerSpec = tuple[KVShape, torch.dtype, int]
"""(shape, dtype, tensor_idx) of one decoder layer; equal tensor_idx share a buffer."""
